"""Fixtures for more than one test module."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from tests.support.s3_server import S3Server

# Without a deadline, as machines are busy. `make test-slow` tries more examples, with --hypothesis-profile.
hypothesis.settings.register_profile("quick", deadline=None, max_examples=30)
hypothesis.settings.register_profile("many", deadline=None, max_examples=300)
hypothesis.settings.load_profile("quick")

FAULT_ROUNDS = 1
CHAOS_LAUNCHES, CHAOS_SEED = 1, 123241
"""A rank is killed."""
_OF_THE_DEVELOPER = re.compile(r"(AWS|AZURE|GOOGLE)_.*|.*_PROXY", re.IGNORECASE)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--fault-rounds N`: how often each fault is tried; the full counts run with `make faults`."""
    parser.addoption(
        "--fault-rounds",
        type=int,
        default=FAULT_ROUNDS,
        metavar="N",
        help="rounds of each fault in tests/faults, which multiply them (default: %(default)s; in full: 200)",
    )
    chaos = parser.getgroup("chaos", "launches struck at random, tests/chaos; in full: make chaos")
    chaos.addoption("--chaos-launches", type=int, default=CHAOS_LAUNCHES, metavar="N", help="how many")
    chaos.addoption("--chaos-seed", type=int, default=CHAOS_SEED, metavar="S", help="seed of their faults")
    chaos.addoption("--chaos-only", type=int, default=None, metavar="N", help="only launch number N")
    chaos.addoption("--chaos-nodes", action="store_true", help="some on nodes in network namespaces (root)")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what `one_in` leaves out."""
    seen: Counter[str] = Counter()
    for item in items:
        marker = item.get_closest_marker("one_in")
        if marker is None or item.get_closest_marker("slow") is not None:
            continue
        test, _, case = item.nodeid.partition("[")
        if seen[test] % marker.args[0] and case.removesuffix("]") not in marker.kwargs.get("also", ()):
            item.add_marker(pytest.mark.slow)
        seen[test] += 1


@pytest.fixture(scope="session", autouse=True)
def environment_of_nobody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No clouds, proxies and keyrings of who runs the tests, here and in what the tests start.

    And lines long enough for any path: where one is folded depends on the directory that a test is given.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if _OF_THE_DEVELOPER.fullmatch(name):
                patch.delenv(name)
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("COLUMNS", "1000")
        yield


@pytest.fixture
def no_grad() -> Iterator[None]:
    import torch

    with torch.no_grad():
        yield


@pytest.fixture
def temp_dir() -> Iterator[Path]:
    """A directory for temporary files with a path short enough for sockets, which may have 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every place of a store is tried anew."""
    from warmrank.cache_store.backends import deadline

    monkeypatch.setattr(deadline, "_circuits", {})


@pytest.fixture(scope="session")
def fault_rounds(pytestconfig: pytest.Config) -> int:
    """How many rounds of each fault this session runs."""
    rounds = pytestconfig.getoption("--fault-rounds")
    assert isinstance(rounds, int)
    if rounds < 1:
        raise pytest.UsageError(f"--fault-rounds is at least 1; got {rounds}")
    return rounds


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """A Ray that was up before the launches of a test; its address."""
    from warmrank.orchestrator.config.models import RayConfig
    from warmrank.orchestrator.gang import ray_session

    session = ray_session.enter(RayConfig(num_cpus=4), timeout_s=120)
    import ray

    yield str(ray.get_runtime_context().gcs_address)
    ray_session.leave(session)


@pytest.fixture(scope="session")
def s3_server(environment_of_nobody: None) -> Iterator[S3Server]:
    """A real S3 server, and the credentials for it in the environment."""
    pytest.importorskip("obstore", reason="object stores are an extra: pip install 'warmrank[s3]'")
    pytest.importorskip("moto", reason="the local S3 server comes with pip install 'warmrank[test]'")
    from tests.support.s3_server import ENVIRONMENT, running_s3

    with pytest.MonkeyPatch.context() as patch, running_s3() as server:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield server
