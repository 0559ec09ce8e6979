"""Fixtures for more than one test module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """A Ray that was up before the launches of a test; its address."""
    from orchestrator import ray_session
    from orchestrator.config_models import RayConfig

    session = ray_session.enter(RayConfig(num_cpus=4))
    import ray

    yield str(ray.get_runtime_context().gcs_address)
    ray_session.leave(session)
