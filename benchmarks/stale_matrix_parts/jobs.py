"""What ``benchmarks/stale_matrix.py`` and its child processes tell each other, as JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One process of a case; the texts are Python, run in this order.

    Attributes:
        name: of the job.
        runner: ``eager``, ``torchair`` or ``warmrank``.
        mode: ``reduce-overhead`` or ``npugraph_ex``.
        directory: holds the model; for files of the job.
        cache: the cache directory.
        expected: file with the results that are right.
        writes: whether this job writes it.
        before: run before the model is imported.
        build: may change ``model``, which was just built.
        config: may change ``config`` and ``options``, the parameters of ``cache_compile``.
        call: may change ``batch``, ``args`` and ``kwargs``.
        context: expression of a context manager for the calls.
        num_ranks: processes that run it together; the first one's result counts.
    """

    name: str
    runner: str
    mode: str
    directory: str
    cache: str
    expected: str
    before: str = ""
    build: str = ""
    config: str = ""
    call: str = ""
    context: str = "torch.no_grad()"
    num_ranks: int = 1
    writes: bool = False


@dataclass(slots=True)
class Outcome:
    """What became of a job.

    Attributes:
        name: of the job.
        outcome: ``compiled``, ``loaded``, ``ran`` (eager), ``error`` or ``died``.
        detail: the reason of a compile, or the error's text.
        wrong: where results or state differ from eager's, in words; empty if they do not.
    """

    name: str
    outcome: str = ""
    detail: str = ""
    wrong: str = ""
