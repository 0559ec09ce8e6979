"""TorchAir's switch for collectives, which is not needed any more."""

from __future__ import annotations

import pytest

from warmrank.worker.hcom import patch_for_hcom


def test_patch_for_hcom_says_that_it_is_not_needed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="torchair"):
        patch_for_hcom()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "patch_for_hcom is not needed" in caplog.text
