"""RankInit the store of a config: places, trust, and what the driver hands on to ranks."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from warmrank.cache_store.errors import StoreUnavailable
from warmrank.cache_store.signing import trust_policy
from warmrank.orchestrator.config import store as trust_module
from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.config.store import StoreConfig
from warmrank.orchestrator.store import stores


def store_of(*paths: Path | str, trust: dict[str, Any] | None = None, mode: str = "rw") -> StoreConfig:
    tiers = [{"path": str(path), "mode": mode, "answer_s": 60} for path in paths]
    store = {"tiers": tiers, "trust": {"policy": "off"} if trust is None else trust}
    found = parse({"workload": {"entrypoint": "a:b"}, "ranks": 1, "store": store}).store
    assert found is not None
    return found


def make(path: Path) -> Path:
    stores.open_store(store_of(path))
    return path


def blocked(tmp_path: Path) -> Path:
    """A place that no store can be made in."""
    (tmp_path / "file").write_text("no directory")
    return tmp_path / "file" / "store"


def test_store_that_is_away_is_a_value_and_ranks_leave_it_alone(tmp_path: Path) -> None:
    found = stores.access(store_of(blocked(tmp_path)))
    assert (found.store, found.for_ranks, found.is_behind) == (None, None, True)
    (tier,) = found.found()
    assert (tier.location, tier.state) == (str(blocked(tmp_path)), "away")
    assert "store unavailable" in tier.reason


def test_required_store_that_is_away_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        stores.access(store_of(blocked(tmp_path), mode="required"))
    assert caught.value.required


def test_place_that_the_driver_lacks_is_still_offered_to_ranks(tmp_path: Path) -> None:
    """It may be a disk of their nodes; only silence is known to cost them time."""
    config = store_of(blocked(tmp_path), tmp_path / "far")
    found = stores.access(config)
    assert found.for_ranks == config
    assert {Path(tier.location).name: tier.state for tier in found.found()} == {
        "far": "used",
        "store": "away",
    }


@pytest.mark.parametrize(
    ("choices", "expected"), [(("off", "off"), "off"), (("off", "require"), "require")], ids=str
)
def test_strictest_place_decides_the_policy(
    monkeypatch: pytest.MonkeyPatch, choices: tuple[str, str], expected: str
) -> None:
    answers = dict(zip(("/a", "/b"), choices, strict=True))
    monkeypatch.setattr(
        trust_module,
        "choose_policy",
        lambda place: trust_policy.PolicyChoice(policy=answers[place], reason=""),  # type: ignore[arg-type]
    )
    assert stores.decided(store_of("/a", "/b", trust={})).trust.policy == expected


def test_place_that_hangs_when_it_is_looked_at_asks_for_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def hang(place: str) -> trust_policy.PolicyChoice:
        released.wait()
        return trust_policy.PolicyChoice(policy="off", reason=place)

    monkeypatch.setattr(trust_module, "choose_policy", hang)
    monkeypatch.setattr(trust_module, "LOOK_S", 0.1)
    try:
        assert stores.decided(store_of("/a", trust={})).trust.policy == "require"
    finally:
        released.set()


def test_fetching_makes_nearer_places_but_not_the_farthest(tmp_path: Path) -> None:
    make(tmp_path / "far")
    opened = stores.open_to_fetch(store_of(tmp_path / "near", tmp_path / "far"))
    assert [tier.state for tier in opened.tiers] == ["used", "used"]
    with pytest.raises(StoreUnavailable):
        stores.open_to_fetch(store_of(tmp_path / "other", tmp_path / "absent"))
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "absent").exists()
