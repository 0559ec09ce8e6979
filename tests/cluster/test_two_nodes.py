"""The launch over a network in `make test-slow`: a rank on each of two nodes; others: `make test-cluster`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.launching import counts
from tests.support.netns_cluster import Cluster, ray_nodes

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def pair(namespaces: None) -> Iterator[Cluster]:
    """Two nodes of one CPU."""
    with ray_nodes(2, num_cpus=1) as cluster:
        yield cluster


@pytest.mark.slow
def test_two_nodes_compile_once_and_load_afterwards_leaving_nothing(pair: Cluster) -> None:
    config = pair.config("pair", ranks=2, parallel={"tp": 2})
    cold, warm = pair.launch(config), pair.launch(config, "--no-compile")
    assert (counts(cold), counts(warm)) == ((2, 0, 2), (0, 4, 0))
    for report in (cold, warm):
        assert {rank.host for rank in report.ranks} == {"n1", "n2"}
        assert all(rank.verification is not None and rank.verification.ok for rank in report.ranks)
    assert pair.left_over() == {}
