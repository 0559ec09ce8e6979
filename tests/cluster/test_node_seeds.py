"""Preseeding nodes over the network: one fetch a node, counted at the store, and nodes that come later."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.look.verify import cached_files
from tests.support.netns_cluster import Cluster
from tests.support.netns_store import CountingStore, blob_reads

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(180)]
