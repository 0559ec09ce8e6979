"""The commands that decide what a store keeps, over a store in a directory whose clock runs ahead."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.support.launching import write_config
from tests.support.stored import (
    FUNCTIONS,
    LAUNCH_KEY,
    blob_path,
    open_store,
    overwrite,
    publish_launch,
    stored,
)
from warmrank.cache_store.gc import evict as evicting
from warmrank.cache_store.signing.keyring import generate
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.store import Store
from warmrank.orchestrator.cli.main import app

DAY_S = 86400.0
LATER = "2026-02-28T12:00:00+00:00"


@pytest.fixture
def store(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Two launches of one key, 40 days ago by the clock of the evict."""
    store = open_store(root)
    publish_launch(store, tmp_path / "old", functions={0: {"Llama.decode": b"old"}})
    publish_launch(store, tmp_path / "new", created=LATER)
    monkeypatch.setattr(evicting, "store_time_s", lambda backend: time.time() + 40 * DAY_S)
    return store


def run(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "400"}).invoke(app, [str(argument) for argument in arguments])


def done(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def old_record(store: Store) -> str:
    return store.stored_launches()[-1].name


def test_evict_takes_what_is_old_and_says_so(store, root):
    text = done("store", "evict", "--store", root, "--older-than", "30d")
    assert f"evict  launch {LAUNCH_KEY[:12]} {old_record_digest(root)}: unused for 40.0 d" in text
    assert "1 records, 1 manifests, 1 blobs went into the trash" in text
    assert [record.created for record in store.launches()] == [LATER]
    assert not blob_path(root, b"old").exists()


def old_record_digest(root: Path) -> str:
    """The record in the trash, by its first characters."""
    (path,) = [path for path in stored(root, "trash") if "launch" in path.parts]
    return path.name[:12]


@pytest.mark.parametrize("mode", [0o775, 0o700])
def test_evict_of_a_store_judges_records_by_the_keyring(root, source, tmp_path, monkeypatch, mode):
    """What nobody signed is newer, and pushes out nothing."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    signer = generate(tmp_path / "config" / "warmrank" / "keys", "ci")
    signed = publish_launch(open_store(root, Trust(policy="require", signer=signer)), source)
    publish_launch(open_store(root), tmp_path / "other", functions={0: {"Llama.decode": b"unsigned"}})
    root.chmod(mode)
    monkeypatch.setattr(evicting, "store_time_s", lambda backend: time.time() + 40 * DAY_S)
    done("store", "evict", "--store", root, "--max-size", "1B")
    assert open_store(root).launches() == (signed,)


def test_dry_run_changes_nothing(store, root):
    before = stored(root, "launch"), stored(root, "cas"), stored(root, "trash")
    limits = ("--older-than", "0s", "--grace", "0s")
    assert "1 records, 1 manifests" in done("store", "evict", "--store", root, *limits, "--dry-run")
    assert (stored(root, "launch"), stored(root, "cas"), stored(root, "trash")) == before


def test_evict_refuses_a_damaged_document_and_names_the_repair(store, root):
    overwrite(stored(root, "ac")[0], b"damaged")
    result = run("store", "evict", "--store", root, "--older-than", "30d")
    assert (result.exit_code, "verify --repair" in result.stderr) == (4, True)
    assert run("store", "verify", "--store", root, "--repair").exit_code == 4
    done("store", "evict", "--store", root, "--older-than", "30d", "--keep", "0")
    assert store.launches() == ()


def test_evict_of_two_places_reports_one_when_the_other_refuses(store, root, tmp_path):
    second = tmp_path / "second"
    publish_launch(open_store(second), tmp_path / "old")
    tiers = [{"path": str(root)}, {"path": str(second)}]
    write_config(tmp_path, store={"tiers": tiers, "trust": {"policy": "off"}})
    overwrite(stored(second, "ac")[0], b"damaged")
    result = run("store", "evict", tmp_path / "tiny.yaml", "--older-than", "30d", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 4
    assert [place["location"] for place in found["places"]] == [str(root)]
    assert [fault["location"] for fault in found["faults"]] == [str(second)]
    assert [record.created for record in store.launches()] == [LATER]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--older-than", "30"),
        ("--max-size", "500"),
        ("--grace", "tomorrow"),
        ("--keep", "-1"),
    ],
)
def test_evict_refuses_what_it_does_not_understand(store, root, arguments):
    assert run("store", "evict", "--store", root, *arguments).exit_code == 2


def test_pinned_launch_outlives_an_evict_until_the_pin_is_removed(store, root):
    digest = old_record(store).rpartition("/")[2]
    assert "baseline" in done("store", "pin", digest[:12], "--store", root, "--reason", "baseline")
    done("store", "evict", "--store", root, "--older-than", "30d")
    assert len(store.launches()) == 2
    assert "nothing is pinned" in done("store", "pin", digest[:12], "--store", root, "--remove")
    done("store", "evict", "--store", root, "--older-than", "30d")
    assert len(store.launches()) == 1


@pytest.mark.parametrize(
    "arguments", [("0d91",), ("f" * 12, "--reason", "a\nb"), ("f" * 12, "--reason", "x" * 501)]
)
def test_pin_that_is_no_prefix_or_gives_no_reason_in_one_line_is_bad_input(store, root, arguments):
    assert run("store", "pin", *arguments, "--store", root).exit_code == 2


def test_verify_repair_moves_damage_away_and_says_so(store, root):
    path = blob_path(root, FUNCTIONS["Llama.decode"])
    overwrite(path, b"damaged")
    plain = run("store", "verify", "--store", root)
    assert (plain.exit_code, path.exists(), "repair:" in plain.stdout) == (4, True, False)
    repaired = run("store", "verify", "--store", root, "--repair")
    assert (repaired.exit_code, path.exists()) == (4, False)
    assert f"repair: cas/sha256/{path.parent.name}/{path.name}: moved into quarantine" in repaired.stdout
    assert path.name in stored(root, "quarantine")[0].name
