"""TorchAir's logger: name, level, form of a line."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import re
import sys
import time
from collections.abc import Iterator

import pytest

from warmrank.worker.log import logger


@pytest.fixture
def info_level() -> Iterator[None]:
    before = logger.level
    logger.setLevel(logging.INFO)
    yield
    logger.setLevel(before)


def test_logger_has_torchairs_name() -> None:
    assert logger is logging.getLogger("torchair")


def test_logger_shows_warnings_until_told_otherwise() -> None:
    assert logger.level == logging.WARNING


def test_logger_writes_one_line_in_torchairs_form(
    info_level: None, capsys: pytest.CaptureFixture[str]
) -> None:
    logger.info("Cache %s", "saved")
    line = capsys.readouterr().out
    assert re.fullmatch(
        rf"\[INFO\] TORCHAIR\({os.getpid()},python[\d.]*\):"
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\.\d{3} \[test_log\.py:\d+\] Cache saved\n",
        line,
    )


def test_logger_writes_milliseconds_and_microseconds_of_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    record = logging.LogRecord("torchair", logging.INFO, "x.py", 1, "m", (), None)
    record.created = 1714488498.123456
    formatter = logger.handlers[0].formatter
    assert formatter is not None
    try:
        assert formatter.formatTime(record) == "2024-04-30 14:48:18.123.456"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_logger_follows_a_redirected_stdout(info_level: None) -> None:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        logger.info("after the redirection")
    assert "after the redirection" in output.getvalue()


def test_logger_writes_nothing_below_its_level(capsys: pytest.CaptureFixture[str]) -> None:
    logger.info("quiet")
    assert capsys.readouterr().out == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_logger_shows_hits_and_misses_on_a_terminal(
    info_level: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr("sys.stdout", Terminal())
    importlib.reload(sys.modules["warmrank.worker.log"])
    assert logger.level == logging.INFO
