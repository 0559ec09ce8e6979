from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.stored import open_store
from warmrank.cache_store.cache_dir.marks import mark_signers
from warmrank.cache_store.signing.keyring import Revocation, generate, revoke
from warmrank.orchestrator.cli.main import app
from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.store.sync import Seat, targets
from warmrank.worker.keys.environment import environment

NODE = Seat(scope="node", rank=None, world_size=None)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    directory = tmp_path / "cache"
    directory.mkdir(mode=0o700)
    (directory / "kernel").write_bytes(b"compiled")
    return directory


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["store", "sync", *map(str, arguments)])
    return result.exit_code, result.output


def test_push_and_pull_through_the_command_line(cache, tmp_path):
    store, keys = ("--store", tmp_path / "store"), ("--key", "torch", "--key", "model=llama-8b")
    assert run("push", "mine", cache, *store, *keys)[0] == 0
    assert run("pull", "mine", tmp_path / "new", *store, *keys)[0] == 0
    assert (tmp_path / "new" / "kernel").read_bytes() == b"compiled"


def test_pull_of_what_was_not_pushed_exits_3_and_says_what_differs(cache, tmp_path):
    store = ("--store", tmp_path / "store")
    run("push", "mine", cache, *store, "--key", "model=llama-8b")
    code, text = run("pull", "mine", tmp_path / "new", *store, "--key", "model=llama-70b")
    assert (code, "llama-8b -> llama-70b" in text) == (3, True)


def test_pull_from_a_store_that_is_not_there_yet_exits_3(tmp_path):
    code, text = run("pull", "mine", tmp_path / "new", "--store", tmp_path / "store")
    assert (code, "push first" in text) == (3, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_there", [True, False])
def test_pull_of_nothing_into_what_a_revoked_key_signed_exits_4(tmp_path, keyring, shared, is_there):
    target = tmp_path / "new"
    target.mkdir(mode=0o700)
    mark_signers(target, ["0" * 32])
    revoke(keyring, Revocation(key_id="0" * 32))
    if is_there:
        open_store(shared)
    code, text = run("pull", "mine", target, "--store", shared)
    assert (code, "revoked" in text) == (4, True)


def test_pull_over_other_files_exits_4_unless_they_are_to_be_replaced(cache, tmp_path):
    store = ("--store", tmp_path / "store")
    run("push", "mine", cache, *store)
    (tmp_path / "new").mkdir(mode=0o700)
    (tmp_path / "new" / "kernel").write_bytes(b"another")
    code, text = run("pull", "mine", tmp_path / "new", *store)
    assert (code, "--replace" in text) == (4, True)
    assert run("pull", "mine", tmp_path / "new", *store, "--replace")[0] == 0
    assert (tmp_path / "new" / "kernel").read_bytes() == b"compiled"


def test_json_of_a_push_and_a_pull(cache, tmp_path):
    store = ("--store", tmp_path / "store")
    (pushed,) = json.loads(run("push", "mine", cache, *store, "--json")[1])
    (pulled,) = json.loads(run("pull", "mine", tmp_path / "new", *store, "--json")[1])["pulled"]
    assert (pushed["num_files"], pushed["key"]) == (pulled["num_new"], pulled["key"])


def test_each_rank_has_a_directory_of_its_own(cache, tmp_path):
    per_rank = ("--per", "rank", "--world-size", 2, "--store", tmp_path / "store")
    for rank in (0, 1):
        (tmp_path / f"rank{rank}").mkdir(mode=0o700)
        (tmp_path / f"rank{rank}" / "kernel").write_text(f"of {rank}")
        assert run("push", "mine", tmp_path / "rank{rank}", *per_rank, "--rank", rank)[0] == 0
    assert run("pull", "mine", tmp_path / "new", *per_rank, "--rank", 1)[0] == 0
    assert (tmp_path / "new" / "kernel").read_text() == "of 1"


@pytest.mark.parametrize(
    "location", ["", "ftp://host/s", "http://127.0.0.1:5999/bkt", "s3:/bkt/x", "s3://me:hunter2@bkt"]
)
@pytest.mark.parametrize(
    "command", [("store", "sync", "push", "mine", "."), ("ls",)], ids=lambda command: command[0]
)
def test_location_that_can_be_no_store_is_bad_input_and_makes_none(tmp_path, monkeypatch, location, command):
    (tmp_path / "here").mkdir(mode=0o700)
    monkeypatch.chdir(tmp_path / "here")
    result = CliRunner().invoke(app, [*command, "--store", location])
    assert (result.exit_code, "--store: expected" in result.stderr) == (2, True)
    assert "hunter2" not in result.output
    assert list((tmp_path / "here").iterdir()) == []


def test_push_of_what_is_no_directory_is_bad_input(tmp_path):
    (tmp_path / "file").touch()
    for name, found in (("absent", "found nothing"), ("file", "found something else")):
        code, text = run("push", "mine", tmp_path / name, "--store", tmp_path / "store")
        assert (code, found in " ".join(text.split())) == (2, True)
    assert not (tmp_path / "store").exists()


def test_config_of_a_sync_needs_no_workload(tmp_path, cache):
    config = tmp_path / "store.yaml"
    config.write_text(f"store: {{path: {tmp_path / 'store'}, trust: {{policy: 'off'}}}}\n")
    assert run("push", "mine", cache, "--config", config, "--key", "a=b")[0] == 0
    assert run("pull", "mine", tmp_path / "back", "--config", config, "--key", "a=b")[0] == 0


def test_store_must_be_named_once(cache):
    code, _ = run("push", "mine", cache)
    assert code == 2


def test_without_keys_all_of_the_environment_counts():
    (target,) = targets(["cache"], [], NODE)
    assert {name: target.components[f"key {name}"] for name in environment()} == environment()


def test_key_of_an_installed_package_is_its_version():
    (target,) = targets(["cache"], ["filelock"], NODE)
    assert target.components["key filelock"].count(".") >= 1


def test_key_of_a_module_finds_the_distribution_that_installs_it(tmp_path, monkeypatch):
    made = tmp_path / "engine_cpu-0.32.0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: engine-cpu\nVersion: 0.32.0\n")
    (made / "RECORD").write_text("engine/__init__.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    (target,) = targets(["cache"], ["engine"], NODE)
    assert target.components["key engine"] == "engine-cpu 0.32.0"


@pytest.mark.parametrize("key", ["no_such_package", "=value", "cann"])
def test_key_that_cannot_be_found_out_is_an_error_that_lists_what_can(key, monkeypatch):
    monkeypatch.setattr(
        "warmrank.orchestrator.store.sync.environment", lambda: {"cann": "none", "torch": "2.13.0"}
    )
    with pytest.raises(BadArgument, match=r"expected NAME=VALUE, .* or one of cann, torch"):
        targets(["cache"], [key], NODE)


def test_key_with_two_values_is_an_error():
    with pytest.raises(BadArgument, match="each name once"):
        targets(["cache"], ["model=a", "model=b"], NODE)


@pytest.mark.parametrize(("rank", "world_size"), [(None, 2), (0, None), (2, 2), (-1, 2)])
def test_rank_outside_of_its_world_is_an_error(rank, world_size):
    with pytest.raises(BadArgument, match="--per rank"):
        targets(["cache"], [], Seat(scope="rank", rank=rank, world_size=world_size))


def test_rank_in_a_node_s_path_is_an_error():
    with pytest.raises(BadArgument, match="--per rank"):
        targets(["cache/{rank}"], [], NODE)


def test_key_named_like_a_part_of_the_seat_is_kept_apart():
    (one,) = targets(["cache"], ["rank=7"], NODE)
    assert "rank" not in one.components


def test_directories_go_by_their_order():
    one, two = targets(["a", "b"], ["model=x"], NODE)
    assert (one.components["directory"], two.components["directory"]) == ("1 of 2", "2 of 2")


@pytest.fixture
def keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    generate(tmp_path / "config" / "warmrank" / "keys", "ci")
    return tmp_path / "config" / "warmrank" / "keys"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A store that others can write, so that it asks for signatures."""
    store = tmp_path / "store"
    store.mkdir()
    store.chmod(0o777)
    return store


def test_shared_store_takes_what_the_named_key_signs_and_gives_what_the_keyring_trusts(
    cache, tmp_path, keyring, shared
):
    code, text = run("push", "mine", cache, "--store", shared)
    assert (code, "--signing-key" in text) == (4, True)
    assert run("push", "mine", cache, "--store", shared, "--signing-key", "ci")[0] == 0
    (keyring / "ci.pem").unlink()  # whoever only reads has the public key
    assert run("pull", "mine", tmp_path / "new", "--store", shared)[0] == 0
    assert (tmp_path / "new" / "kernel").read_bytes() == b"compiled"


def test_pull_with_a_config_whose_signing_key_is_not_on_this_node(cache, tmp_path, keyring, shared):
    config = tmp_path / "launch.yaml"
    config.write_text(
        "workload: {entrypoint: 'warmrank.examples.llama:workload'}\nranks: 1\n"
        f"store: {{path: {shared}, trust: {{signing_key: ci}}}}\n"
    )
    assert run("push", "mine", cache, "--config", config)[0] == 0
    (keyring / "ci.pem").unlink()
    assert run("pull", "mine", tmp_path / "new", "--config", config)[0] == 0
    code, text = run("push", "mine", cache, "--config", config)
    assert (code, "no such file" in " ".join(text.split())) == (2, True)
