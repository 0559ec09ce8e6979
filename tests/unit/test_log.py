"""TorchAir's logger: name, level, form of a line."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
from collections.abc import Iterator

import pytest

from warmrank.worker.log import logger


@pytest.fixture
def info_level() -> Iterator[None]:
    before = logger.level
    logger.setLevel(logging.INFO)
    yield
    logger.setLevel(before)


def test_logger_writes_one_line_in_torchairs_form(info_level, capsys):
    logger.info("Cache %s", "saved")
    line = capsys.readouterr().out
    assert re.fullmatch(
        rf"\[INFO\] TORCHAIR\({os.getpid()},python[\d.]*\):"
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\.\d{3} \[test_log\.py:\d+\] Cache saved\n",
        line,
    )


def test_logger_follows_a_redirected_stdout(info_level: None) -> None:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        logger.info("after the redirection")
    assert "after the redirection" in output.getvalue()
