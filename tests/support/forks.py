"""Processes that are forked for one piece of work, whose result comes back."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

FORK = multiprocessing.get_context("fork")


def crowd(size: int, work: Callable[[int], Any]) -> list[Any]:
    """What each of ``size`` forked processes returned, in their order.

    Raises:
        EOFError: one ended early.
    """
    pipes = [FORK.Pipe(duplex=False) for _ in range(size)]
    processes = [
        FORK.Process(target=lambda index=index, pipe=pipe: pipe[1].send(work(index)))
        for index, pipe in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    for _, writer in pipes:
        writer.close()
    answers = [reader.recv() for reader, _ in pipes]
    for process in processes:
        process.join()
    return answers


def in_a_fork(work: Callable[[], Any]) -> Any:
    return crowd(1, lambda _: work())[0]
