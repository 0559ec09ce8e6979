"""Ray clusters of real nodes, and a launch of eight ranks on four of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.netns import why_not
from tests.support.netns_cluster import Cluster, CountingStore, ray_nodes
from tests.support.s3_server import ENVIRONMENT
from warmrank.orchestrator.launch.report import Report


@pytest.fixture(scope="session", autouse=True)
def namespaces() -> None:
    """Skips where this machine cannot have such nodes."""
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def nodes(namespaces: None) -> Iterator[Cluster]:
    """Four nodes of two CPUs; a test that changes them changes them back."""
    with ray_nodes(4, num_cpus=2, environ=ENVIRONMENT) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def counting_store(nodes: Cluster) -> CountingStore:
    """An S3 server on the nodes' network that notes what it is asked."""
    pytest.importorskip("obstore", reason="object stores are an extra: pip install 'warmrank[s3]'")
    pytest.importorskip("moto", reason="the local S3 server comes with pip install 'warmrank[test]'")
    return CountingStore(nodes.net.switch, nodes.net.base / "requests.log", nodes.environ)


@pytest.fixture(scope="session")
def tiny(nodes: Cluster, counting_store: CountingStore) -> Path:
    """The config of a launch: tensor parallel 2 x data parallel 4, out of the store that counts."""
    return nodes.config("tiny", store=counting_store.config("tiny"))


@pytest.fixture(scope="session")
def cold(nodes: Cluster, tiny: Path) -> Report:
    """Its first launch."""
    return nodes.launch(tiny)
