"""`doctor --all-nodes` on a real Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launched import loaded_config
from warmrank.orchestrator.doctor.nodes import diagnose_nodes

pytestmark = pytest.mark.ray


@pytest.mark.slow
def test_every_node_answers_with_its_findings_and_its_clock(tmp_path: Path, cluster: str):
    config = loaded_config(tmp_path, ray={"address": cluster})
    found = diagnose_nodes(config, None)
    (node,) = found.nodes
    levels = {finding.check: finding.level for finding in node.findings}
    assert levels["versions.import"] == "ok"
    assert levels["clocks.driver"] == "ok"
    assert levels["store.reachable"] == "note"  # the first launch makes it
    assert [finding.level for finding in found.cluster] == ["ok"]
