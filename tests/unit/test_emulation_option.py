"""``warmrank launch --emulate-npu``: what it refuses, and what ranks inherit."""

from __future__ import annotations

import importlib.util
import os

import pytest

from warmrank.orchestrator.config.models import DeviceKind
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.launch.emulation import emulate
from warmrank.worker.settings import settings


def config(device: DeviceKind) -> Config:
    return Config.model_validate(
        {
            "workload": {"entrypoint": "warmrank.examples.llama:workload"},
            "ranks": 1,
            "device": device,
            "cache_dir": "cache",
        }
    )


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WARMRANK_EMULATE_NPU", "TORCH_DEVICE_BACKEND_AUTOLOAD"):
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)


def test_other_device_is_refused() -> None:
    with pytest.raises(BadArgument, match=r"device is cpu; expected npu\. Add --set device=npu"):
        emulate(config("cpu"))
    assert not settings().emulate_npu


def test_missing_package_is_refused_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(BadArgument, match=r"make \.venv-npu"):
        emulate(config("npu"))
    assert not settings().emulate_npu


def test_ranks_inherit_what_makes_them_emulate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    emulate(config("npu"))
    assert settings().emulate_npu
    assert os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
