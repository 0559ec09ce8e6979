"""Two launches into one cache directory that is empty."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from tests.support.launching import loaded_config
from warmrank.orchestrator.launch.driver import turn


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_second_launch_waits_for_the_first_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    config, order = loaded_config(tmp_path), []
    waits = threading.Event()

    def note(_record: logging.LogRecord) -> bool:
        waits.set()
        return True

    caplog.handler.addFilter(note)

    def second() -> None:
        with turn(config):
            order.append("second")

    thread = threading.Thread(target=second)
    with turn(config):
        thread.start()
        assert waits.wait(60)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]
    assert "waiting for its end" in caplog.text


def test_launches_after_the_first_do_not_wait_for_each_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    config = loaded_config(tmp_path)
    with turn(config):
        pass
    with turn(config), turn(config):
        pass
    assert not caplog.records


def test_launch_that_failed_leaves_the_first_turn_to_the_next(tmp_path: Path):
    config = loaded_config(tmp_path)
    with pytest.raises(RuntimeError), turn(config):
        raise RuntimeError
    assert not list((tmp_path / "cache").rglob("*.ended"))
