"""The store and clocks, on made-up facts, and as they are looked at."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.launched import loaded_config, store_launch
from warmrank.cache_store.signing.keyring import generate
from warmrank.orchestrator.config.store import StoreConfig, TierConfig
from warmrank.orchestrator.doctor.clocks import Clock
from warmrank.orchestrator.doctor.clocks import check as check_clocks
from warmrank.orchestrator.doctor.findings import Finding
from warmrank.orchestrator.doctor.look_store import look_at_keys, look_at_launches, look_at_places
from warmrank.orchestrator.doctor.store import Keys, Place, check_keys, check_places

OPEN = Place(
    location="/mnt/store",
    mode="rw",
    state="open",
    problem="",
    remedy="",
    answer_s=3.5,
    write_problem="",
    was_written=True,
)
SIGNING = Keys(
    policy="require",
    was_decided=True,
    signing_key="/keys/ci.pem",
    num_trusted=2,
    problem="",
    remedy="",
)


def troubles(*places: Place) -> list[tuple[str, str]]:
    return [(item.check, item.level) for item in check_places(places) if item.level != "ok"]


def of_keys(keys: Keys) -> Finding:
    (found,) = check_keys(keys)
    return found


def test_open_and_written_is_fine():
    assert troubles(OPEN, OPEN) == []


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({"state": "silent"}, "error"),
        ({"state": "refused", "problem": "no such bucket"}, "error"),
        ({"state": "absent"}, "note"),
        ({"state": "absent", "mode": "ro"}, "warning"),
        ({"state": "absent", "mode": "required"}, "error"),
        ({"state": "absent", "problem": "/mnt may not be written"}, "error"),
    ],
)
def test_farthest_place_that_cannot_be_used_is_named(change: dict[str, object], level: str):
    place = replace(OPEN, was_written=False, **change)  # type: ignore[arg-type]
    assert troubles(OPEN, place) == [("store.reachable", level)]


def test_nearer_place_that_is_away_is_a_warning_unless_it_is_required():
    away = replace(OPEN, state="silent", was_written=False)
    assert troubles(away, OPEN) == [("store.reachable", "warning")]
    assert troubles(replace(away, mode="required"), OPEN) == [("store.reachable", "error")]


@pytest.mark.parametrize(("mode", "level"), [("rw", "warning"), ("required", "error")])
def test_place_that_takes_no_files_is_named(mode: str, level: str):
    place = replace(OPEN, mode=mode, was_written=False, write_problem="permission denied")
    assert troubles(place) == [("store.writable", level)]


def test_place_that_is_only_read_is_not_written():
    assert troubles(replace(OPEN, mode="ro", was_written=False)) == []


def test_keys_that_sign_are_fine():
    assert of_keys(SIGNING).level == "ok"
    assert of_keys(replace(SIGNING, policy="off", signing_key="", num_trusted=0)).level == "ok"


@pytest.mark.parametrize(("num_trusted", "level"), [(2, "note"), (0, "warning")])
def test_required_signatures_without_a_key_publish_nothing(num_trusted: int, level: str):
    assert of_keys(replace(SIGNING, signing_key="", num_trusted=num_trusted)).level == level


def test_unusable_key_is_an_error_with_its_own_remedy():
    found = of_keys(replace(SIGNING, problem="others can write it", remedy="chmod 600"))
    assert (found.level, found.remedy) == ("error", "chmod 600")


def clock_level(ahead_s: float) -> str:
    (found,) = check_clocks([Clock(check="clocks.store", name="the store", ahead_s=ahead_s)])
    return found.level


@pytest.mark.parametrize(
    ("ahead_s", "level"), [(0.0, "ok"), (4.0, "ok"), (-4.0, "ok"), (60.0, "warning"), (-1000.0, "error")]
)
def test_clocks_may_differ_by_seconds(ahead_s: float, level: str):
    assert clock_level(ahead_s) == level


def test_skew_says_which_side_and_roughly_how_much():
    (found,) = check_clocks([Clock(check="clocks.store", name="the store", ahead_s=-7250.0)])
    assert (found.actual, "behind" in found.what) == ("about 2 hours behind", True)


@pytest.mark.parametrize(("ahead_s", "level"), [(-86400.0, "ok"), (3600.0, "warning")])
def test_newest_record_must_lie_in_the_past(ahead_s: float, level: str):
    (found,) = check_clocks([], newest_ahead_s=ahead_s)
    assert (found.check, found.level) == ("clocks.records", level)


def test_directory_is_written_and_left_as_it_was(tmp_path: Path):
    config = loaded_config(tmp_path)
    store_launch(config, tmp_path / "work")
    assert config.store is not None
    before = sorted((tmp_path / "store").rglob("*"))
    (place,), (clock,) = look_at_places(config.store)
    assert (place.state, place.was_written, place.write_problem) == ("open", True, "")
    assert abs(clock.ahead_s) < 5.0
    assert sorted((tmp_path / "store").rglob("*")) == before


def test_place_that_is_only_read_is_left_alone(tmp_path: Path):
    config = loaded_config(tmp_path, store={"path": str(tmp_path / "store"), "mode": "ro"})
    store_launch(loaded_config(tmp_path), tmp_path / "work")
    assert config.store is not None
    (place,), clocks = look_at_places(config.store)
    assert (place.state, place.was_written, clocks) == ("open", False, ())


def test_store_that_is_yet_to_be_made_is_absent(tmp_path: Path):
    config = StoreConfig(tiers=(TierConfig(path=str(tmp_path / "later" / "store")),))
    (place,), _ = look_at_places(config)
    assert (place.state, place.problem) == ("absent", "")
    assert not (tmp_path / "later").exists()


def test_directory_with_something_else_is_refused(tmp_path: Path):
    (tmp_path / "holiday.jpg").write_bytes(b"")
    (place,), _ = look_at_places(StoreConfig(tiers=(TierConfig(path=str(tmp_path)),)))
    assert place.state == "refused"
    assert place.problem


def test_size_of_the_newest_launch_and_its_time_are_read(tmp_path: Path):
    created = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    config = loaded_config(tmp_path)
    store_launch(config, tmp_path / "work", created=created)
    found = look_at_launches(config)
    blobs = [path.stat().st_size for path in (tmp_path / "store" / "cas").rglob("*") if path.is_file()]
    assert found.needed_bytes >= sum(blobs)
    assert found.newest_ahead_s is not None
    assert 3000 < found.newest_ahead_s <= 3600


def test_nothing_is_known_of_launches_without_a_store(tmp_path: Path):
    assert look_at_launches(loaded_config(tmp_path, store=None)).needed_bytes == 0
    assert look_at_launches(loaded_config(tmp_path)).newest_ahead_s is None


def test_keys_are_read_as_a_launch_reads_them(tmp_path: Path):
    keyring = tmp_path / "keys"
    generate(keyring, "ci")
    trust = {"policy": "require", "signing_key": "ci", "keyring": str(keyring)}
    config = loaded_config(tmp_path, store={"path": str(tmp_path / "store"), "trust": trust})
    assert config.store is not None
    found = look_at_keys(config.store)
    assert (found.policy, found.was_decided, found.problem) == ("require", False, "")
    os.remove(found.signing_key)  # noqa: PTH107 - a path as text
    assert "no such file" in look_at_keys(config.store).problem
