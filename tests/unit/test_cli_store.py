"""The command line on stores: ls, explain, sync, evict, keys, init."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.checkout import python
from tests.support.command_line import run as invoke
from tests.support.launching import loaded_config, store_launch, write_config
from tests.support.stored import (
    FUNCTIONS,
    blob_path,
    open_store,
    overwrite,
    publish_launch,
    save_key_pair,
    stored,
    tree,
)
from warmrank.cache_store.cache_dir.marks import mark_signers
from warmrank.cache_store.errors import NoStoreYet, StoreUnavailable
from warmrank.cache_store.gc import evict as evicting
from warmrank.cache_store.records.manifest import OF_ONE_RUN
from warmrank.cache_store.signing.keyring import (
    Revocation,
    generate,
    generate_key_pair,
    key_id,
    load_public_key,
    load_signer,
    private_path,
    public_path,
    read_keyring,
    revoke,
)
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.store import Store, TierSpec
from warmrank.cache_store.store import open_store as open_tiers
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.exec.notes import exchange
from warmrank.orchestrator.inspect.explain import explain
from warmrank.orchestrator.inspect.store_contents import open_if_there, open_to_look, show_partition

pytestmark = pytest.mark.usefixtures("own_keys")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    directory = tmp_path / "cache"
    directory.mkdir(mode=0o700)
    (directory / "kernel").write_bytes(b"compiled")
    return directory


def done(*arguments: object) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def run(*arguments: object) -> tuple[int, str]:
    result = invoke("store", "sync", *arguments)
    return result.exit_code, result.output


def test_listing_names_what_a_user_keyed_a_directory_by_not_the_machine(cache, tmp_path):
    store = ("--store", tmp_path / "store")
    keys = ("--key", "torch_npu=2.13", "--key", "triton=none", "--key", "model=llama-8b")
    run("push", "mine", cache, *store, *keys)
    listed = json.loads(done("ls", *store, "--json"))
    assert [line["what"] for line in listed["directories"]] == ["model=llama-8b"]


def test_listing_has_no_notes_of_hosts(tmp_path):
    exchange(open_store(tmp_path / "store"), {OF_ONE_RUN: "job 7"}, "0 of 1", ["0 of 1"], "ranks")
    assert json.loads(done("ls", "--store", tmp_path / "store", "--json"))["directories"] == []


@pytest.mark.parametrize(
    ("workload", "name"), [({"entrypoint": "models.tiny:workload"}, "models.tiny:workload"), (None, "tiny")]
)
def test_listing_names_a_launch_by_its_workload_else_by_its_config(tmp_path, workload, name):
    store_launch(loaded_config(tmp_path, workload=workload), tmp_path / "work")
    listed = json.loads(done("ls", "--store", tmp_path / "store", "--json"))
    assert [line["what"] for line in listed["launches"]] == [name]


def test_pull_of_what_was_not_pushed_exits_3_and_says_what_differs(cache, tmp_path):
    store = ("--store", tmp_path / "store")
    run("push", "mine", cache, *store, "--key", "model=llama-8b")
    code, text = run("pull", "mine", tmp_path / "new", *store, "--key", "model=llama-70b")
    assert (code, "llama-8b -> llama-70b" in text) == (3, True)


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


def test_push_with_a_revoked_key_exits_2(cache, keyring, shared):
    named = ("--store", shared, "--signing-key", "ci")
    assert run("push", "mine", cache, *named)[0] == 0
    invoke("keys", "revoke", "ci")
    code, text = run("push", "mine", cache, *named)
    assert (code, "it may sign nothing" in text) == (2, True)


def test_pull_over_other_files_exits_4_unless_they_are_to_be_replaced(cache, tmp_path):
    store = ("--store", tmp_path / "store")
    run("push", "mine", cache, *store)
    (tmp_path / "new").mkdir(mode=0o700)
    (tmp_path / "new" / "kernel").write_bytes(b"another")
    code, text = run("pull", "mine", tmp_path / "new", *store)
    assert (code, "--replace" in text) == (4, True)
    assert run("pull", "mine", tmp_path / "new", *store, "--replace")[0] == 0
    assert (tmp_path / "new" / "kernel").read_bytes() == b"compiled"


@pytest.fixture
def keyring(own_keys: Path) -> Path:
    generate(own_keys, "ci")
    return own_keys


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
    assert (code, "--signing-key" in text) == (2, True)
    assert run("push", "mine", cache, "--store", shared, "--signing-key", "ci")[0] == 0
    (keyring / "ci.pem").unlink()  # whoever only reads has the public key
    assert run("pull", "mine", tmp_path / "new", "--store", shared)[0] == 0
    assert (tmp_path / "new" / "kernel").read_bytes() == b"compiled"


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


@pytest.mark.parametrize("mode", [0o775, 0o700])
def test_evict_of_a_store_judges_records_by_the_keyring(root, source, tmp_path, monkeypatch, own_keys, mode):
    """What nobody signed is newer, and pushes out nothing."""
    signer = generate(own_keys, "ci")
    signed = publish_launch(open_store(root, Trust(policy="require", signer=signer)), source)
    publish_launch(open_store(root), tmp_path / "other", functions={0: {"Llama.decode": b"unsigned"}})
    root.chmod(mode)
    monkeypatch.setattr(evicting, "store_time_s", lambda backend: time.time() + 40 * DAY_S)
    done("store", "evict", "--store", root, "--max-size", "1B")
    assert open_store(root).launches() == (signed,)


@pytest.mark.parametrize(
    "arguments", [("--older-than", "30"), ("--max-size", "500"), ("--grace", "tomorrow"), ("--keep", "-1")]
)
def test_evict_refuses_what_it_does_not_understand(store, root, arguments):
    assert invoke("store", "evict", "--store", root, *arguments).exit_code == 2


def test_pinned_launch_outlives_an_evict_until_the_pin_is_removed(store, root):
    digest = tuple(store.newest_launches())[-1].name.rpartition("/")[2]
    assert "baseline" in done("store", "pin", digest[:12], "--store", root, "--reason", "baseline")
    done("store", "evict", "--store", root, "--older-than", "30d")
    assert len(store.launches()) == 2
    assert "nothing is pinned" in done("store", "pin", digest[:12], "--store", root, "--remove")
    done("store", "evict", "--store", root, "--older-than", "30d")
    assert len(store.launches()) == 1


def test_pin_takes_its_launch_and_then_a_config_as_show_does(tmp_path):
    config = loaded_config(tmp_path)
    key = store_launch(config, tmp_path / "work").launch_key
    path = str(tmp_path / "tiny.yaml")
    assert key[:12] in done("store", "pin", key[:12], path)
    for words in ((path, "--list"), ("--list", "--config", path)):
        assert key[:12] in done("store", "pin", *words)
    result = invoke("store", "pin", path)
    assert (result.exit_code, "LAUNCH" in result.stderr) == (2, True)


def test_generate_in_a_keyring_that_cannot_be_believed_makes_no_key(own_keys):
    done("keys", "generate", "ci")
    own_keys.chmod(0o777)
    assert invoke("keys", "generate", "other").exit_code == 4
    own_keys.chmod(0o700)
    (own_keys / "trusted" / "theirs.pub.pem").write_text("damaged")
    assert invoke("keys", "generate", "other").exit_code == 4
    assert not private_path(own_keys, "other").exists()


@pytest.mark.parametrize(
    ("event", "count"), [("os.link", 1), ("os.link", 2), ("os.remove", 1), ("os.remove", 2)]
)
def test_generate_goes_through_after_one_that_was_killed(own_keys, event, count):
    """Nothing else than the pair is left a day later, and a pair that was whole stays as it is."""
    program = f"""import os, sys
left = {count}
def kill(event, args):
    global left
    left -= event == {event!r}
    if not left: os._exit(1)
sys.addaudithook(kill)
from pathlib import Path
from warmrank.cache_store.signing.keyring import generate
generate(Path({str(own_keys)!r}), "ci")"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 1
    for file in own_keys.rglob(".tmp-*"):
        os.utime(file, (0, 0))
    was_whole = public_path(own_keys, "ci").exists()
    assert invoke("keys", "generate", "ci").exit_code == (2 if was_whole else 0)
    done("keys", "generate", "other")
    assert {file.name for file in own_keys.rglob("*") if file.is_file()} == {
        *("ci.pem", "ci.pub.pem", "other.pem", "other.pub.pem")
    }
    assert (
        load_public_key(public_path(own_keys, "ci")) == load_signer(private_path(own_keys, "ci")).public_key
    )


def test_generate_does_not_trust_a_revoked_key_again(own_keys):
    done("keys", "generate", "ci")
    done("keys", "revoke", "ci")
    public_path(own_keys, "ci").unlink()
    assert invoke("keys", "generate", "ci").exit_code == 2
    assert not public_path(own_keys, "ci").exists()


def test_what_a_command_is_given_and_cannot_use_is_bad_input(tmp_path, root, store):
    _, file = save_key_pair(generate_key_pair("theirs"), tmp_path)
    done("keys", "generate", "ci")
    (tmp_path / "no-key.pem").write_text("no key")
    for words in (
        ("keys", "trust", file, "--name", "ci"),
        ("keys", "trust", tmp_path / "no-key.pem"),
        ("keys", "revoke", tmp_path / "no-key.pem"),
        ("store", "pin", "0" * 12, "--store", root),
    ):
        assert invoke(*words).exit_code == 2, words


def test_required_store_is_not_made_where_its_disk_may_not_be_mounted(tmp_path):
    spec = TierSpec(location=str(tmp_path / "mnt" / "store"), mode="required")
    with pytest.raises(StoreUnavailable, match="warmrank store init") as caught:
        open_tiers([spec], trust=Trust(policy="off"))
    assert caught.value.required
    assert not (tmp_path / "mnt").exists()


def test_list_tells_own_trusted_and_revoked_apart(tmp_path):
    done("keys", "generate", "ci")
    _, file = save_key_pair(generate_key_pair("theirs"), tmp_path)
    done("keys", "trust", file)
    done("keys", "revoke", "1" * 32, "--reason", "stolen")
    states = {
        line["name"]: (line["own"], line["trusted"], line["revoked"] is not None)
        for line in json.loads(done("keys", "list", "--json"))["keys"]
    }
    assert states == {"ci": (True, True, False), "theirs": (False, True, False), "": (False, False, True)}
    assert "stolen" in done("keys", "list")


def test_revoke_takes_name_id_and_files(tmp_path, own_keys):
    done("keys", "generate", "ci")
    theirs, other = generate_key_pair("theirs"), generate_key_pair("other")
    private, _ = save_key_pair(theirs, tmp_path)
    for text in ("ci", private, key_id(other.public_key)):
        assert "is revoked now" in done("keys", "revoke", text)
    own = load_public_key(public_path(own_keys, "ci"))
    assert {item.name for item in read_keyring(own_keys).revoked.values()} == {"ci", "theirs", ""}
    assert set(read_keyring(own_keys).revoked) == {
        key_id(key) for key in (own, theirs.public_key, other.public_key)
    }


def test_verify_repair_moves_damage_away_and_says_so(store, root):
    path = blob_path(root, FUNCTIONS["Llama.decode"])
    overwrite(path, b"damaged")
    plain = invoke("store", "verify", "--store", root)
    assert (plain.exit_code, path.exists(), "repair:" in plain.stdout) == (4, True, False)
    repaired = invoke("store", "verify", "--store", root, "--repair")
    assert (repaired.exit_code, path.exists()) == (4, False)
    assert f"repair: cas/sha256/{path.parent.name}/{path.name}: moved into quarantine" in repaired.stdout
    assert path.name in stored(root, "quarantine")[0].name


@pytest.mark.parametrize("prefix", ["launch", "ac", "dir"])
def test_looking_leaves_damage_where_an_evict_refuses_it(root, cache, tmp_path, prefix):
    config = write_config(tmp_path)
    store_launch(loaded_config(tmp_path), tmp_path / "source")
    done("store", "sync", "push", "vllm", cache, "--store", root, "--key", "model=8b")
    overwrite(stored(root, prefix)[0], b"damaged")
    before = tree(root)
    said = [invoke(*command).output for command in (("ls", config), ("ls", "--store", root))]
    invoke("explain", config), invoke("show", "world2global_rank0", "--store", root)
    assert tree(root) == before
    assert ["problem: corrupt: " in text for text in said] == [True, True]
    assert invoke("store", "evict", "--store", root, "--dry-run").exit_code == 4


OLDER = "2026-01-01T12:00:00+00:00"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return loaded_config(tmp_path)


def test_of_partitions_with_one_name_the_last_stored_is_shown_whatever_the_clock_of_its_maker(
    config, tmp_path
):
    store_launch(config, tmp_path / "work")
    other = config.model_copy(update={"device": "npu"})
    store_launch(other, tmp_path / "other", created=OLDER)
    view = show_partition(open_to_look(config, None), "world2global_rank0")
    assert view.manifest.created == OLDER
    assert len(view.others) == 1
    edited = loaded_config(tmp_path, workload={"entrypoint": "models.edited:workload"})
    with pytest.raises(BadArgument, match="holds no launch of this config"):
        show_partition(open_to_look(config, None), "world2global_rank0", edited)


@pytest.mark.parametrize("is_made", [False, True])
def test_before_the_first_launch_there_is_no_store_yet(config: Config, tmp_path: Path, is_made: bool):
    if is_made:
        (tmp_path / "store").mkdir()
    found = explain(config, open_if_there(config))
    assert found.outlook == "compile"
    assert found.store == str(tmp_path / "store")
    assert str(NoStoreYet(what="store", where=found.store)) in found.verdict
    assert f"relative paths are read from {Path.cwd()}" in found.verdict
    with pytest.raises(NoStoreYet) as caught:
        open_to_look(config, None)
    assert str(caught.value) in found.verdict


@pytest.mark.parametrize(("command", "said"), [(("explain",), "tiny"), (("preseed", "--here"), "seeded")])
def test_looking_and_seeding_here_import_neither_torch_nor_ray(config, tmp_path, command, said):
    store_launch(config, tmp_path / "work")
    code = (
        "import sys\n"
        "from warmrank.orchestrator.cli.main import app\n"
        f"app([*{command}, {str(tmp_path / 'tiny.yaml')!r}], standalone_mode=False)\n"
        "assert not {'torch', 'ray'} & set(sys.modules)\n"
    )
    assert said in python("-c", code)


def test_init_makes_a_required_store_once(tmp_path):
    write_config(tmp_path, store={"path": str(tmp_path / "store"), "mode": "required"})
    for said in ("made", "there already"):
        assert done("store", "init", tmp_path / "tiny.yaml") == f"{said}: {tmp_path / 'store'}\n"


def test_without_the_farthest_place_nothing_is_pinned_or_pushed_and_no_miss_is_believed(cache, tmp_path):
    near, far = tmp_path / "near", tmp_path / "far"
    tiers = [{"path": str(near)}, {"path": str(far)}]
    config = loaded_config(tmp_path, store={"tiers": tiers, "trust": {"policy": "off"}})
    launch = store_launch(config, tmp_path / "work").launch_key[:12]
    shutil.copytree(near, tmp_path / "elsewhere")
    far.write_bytes(b"")  # which is no directory
    before, file = tree(near), ("--config", tmp_path / "tiny.yaml")
    for words in (("pin", launch), ("pin", launch, "--remove"), ("sync", "push", "mine", cache)):
        failed = invoke("store", *words, *file)
        assert (failed.exit_code, str(far) in failed.stderr) == (4, True)
    missed = invoke("store", "sync", "pull", "mine", tmp_path / "new", *file)
    assert (missed.exit_code, str(far) in missed.stderr) == (4, True)
    assert tree(near) == before
    seeded = invoke("preseed", "--here", tmp_path / "tiny.yaml", "--json")
    assert (seeded.exit_code, json.loads(seeded.stdout)[0]["found"]) == (4, True)
    assert (
        invoke("preseed", "--here", tmp_path / "tiny.yaml", "--set", "workload.arguments.layers=9").exit_code
        == 4
    )
    near.rename(tmp_path / "away")
    far.unlink()
    (tmp_path / "elsewhere").rename(far)
    pinned = invoke("store", "pin", launch, *file)  # the near one is a cache
    assert (pinned.exit_code, launch in pinned.stdout, str(near) in pinned.stderr) == (0, True, True)
    (tmp_path / "away").rename(near)
    assert "in 2 places together" in invoke("store", "verify", tmp_path / "tiny.yaml").stdout
