"""Inductor's cache, pushed from one path and pulled at another, hits there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.stored import open_store
from warmrank.cache_store.backends.directory import DirectoryBackend
from warmrank.cache_store.cache_dir.marks import mark_signers
from warmrank.cache_store.records.documents import Documents
from warmrank.cache_store.signing.keyring import Revocation, generate, revoke
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.sync.pull import plan_pull, pull
from warmrank.cache_store.sync.push import push
from warmrank.orchestrator.cli.main import app
from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.store.sync import Seat, targets

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


@pytest.mark.parametrize("key", ["no_such_package", "=value", "cann"])
def test_key_that_cannot_be_found_out_is_an_error_that_lists_what_can(key, monkeypatch):
    monkeypatch.setattr(
        "warmrank.orchestrator.store.sync.environment", lambda: {"cann": "none", "torch": "2.13.0"}
    )
    with pytest.raises(BadArgument, match=r"expected NAME=VALUE, .* or one of cann, torch"):
        targets(["cache"], [key], NODE)


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


CHILD = """
import json, torch
from torch._dynamo.utils import counters
compiled = torch.compile(lambda x: x.sin() + 1)
compiled(torch.ones(8))
print(json.dumps({name: counters["inductor"][name] for name in ("fxgraph_cache_hit", "fxgraph_cache_miss")}))
"""


def run_inductor(cache: Path) -> dict[str, int]:
    environ = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"  # they take longer than one small kernel
    done = subprocess.run(
        [sys.executable, "-c", CHILD], env=environ, capture_output=True, text=True, check=True, timeout=400
    )
    counts: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return counts


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ on a CPU: no g++ here")
def test_inductor_hits_in_a_directory_pulled_at_another_path(tmp_path):
    documents = Documents(backend=DirectoryBackend(tmp_path / "store"), trust=Trust(policy="off"))
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir(mode=0o700)
    assert run_inductor(old) == {"fxgraph_cache_hit": 0, "fxgraph_cache_miss": 1}
    push(documents, "inductor", old, {})
    shutil.rmtree(old)
    pull(documents, plan_pull(documents, "inductor", new, {}))
    assert run_inductor(new) == {"fxgraph_cache_hit": 1, "fxgraph_cache_miss": 0}
