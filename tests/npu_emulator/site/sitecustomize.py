"""Python imports this in every process that has this directory in PYTHONPATH; see `tests.npu_emulator`."""

from tests.npu_emulator import install_on_import

install_on_import()
