from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.support.stored import save_key_pair
from warmrank.cache_store.signing.keyring import private_path, public_path, read_keyring
from warmrank.cache_store.signing.signing_keys import generate_key_pair, key_id, load_public_key
from warmrank.orchestrator.cli.main import app


@pytest.fixture(autouse=True)
def keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "warmrank" / "keys"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["keys", *(str(argument) for argument in arguments)])


def done(*arguments: str | Path) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_generate_prints_id_files_and_what_to_do(keyring):
    text = done("generate", "ci")
    for part in (
        key_id(load_public_key(public_path(keyring, "ci"))),
        str(private_path(keyring, "ci")),
        "store.trust.signing_key: ci",
        "warmrank keys trust ci.pub.pem",
    ):
        assert part in text
    assert "store.trust.keyring" not in text


def test_generate_in_a_keyring_that_cannot_be_believed_makes_no_key(keyring):
    done("generate", "ci")
    keyring.chmod(0o777)
    assert run("generate", "other").exit_code == 4
    keyring.chmod(0o700)
    (keyring / "trusted" / "theirs.pub.pem").write_text("damaged")
    assert run("generate", "other").exit_code == 4
    assert not private_path(keyring, "other").exists()


def test_list_tells_own_trusted_and_revoked_apart(tmp_path):
    done("generate", "ci")
    _, file = save_key_pair(generate_key_pair("theirs"), tmp_path)
    done("trust", file)
    done("revoke", "1" * 32, "--reason", "stolen")
    keys = {line["name"]: line for line in json.loads(done("list", "--json"))["keys"]}
    states = {
        name: (line["own"], line["trusted"], line["revoked"] is not None) for name, line in keys.items()
    }
    assert states == {"ci": (True, True, False), "theirs": (False, True, False), "": (False, False, True)}
    assert "stolen" in done("list")


def test_revoke_takes_name_id_and_files(tmp_path, keyring):
    done("generate", "ci")
    theirs, other = generate_key_pair("theirs"), generate_key_pair("other")
    private, _ = save_key_pair(theirs, tmp_path)
    for text in ("ci", private, key_id(other.public_key)):
        assert "is revoked now" in done("revoke", text)
    own = load_public_key(public_path(keyring, "ci"))
    assert {item.name for item in read_keyring(keyring).revoked.values()} == {"ci", "theirs", ""}
    assert set(read_keyring(keyring).revoked) == {
        key_id(key) for key in (own, theirs.public_key, other.public_key)
    }


def test_revoke_of_a_name_of_two_keys_asks_for_an_id(keyring):
    done("generate", "ci")
    public_path(keyring, "ci").unlink()
    _, file = save_key_pair(generate_key_pair("theirs"), keyring.parent)
    done("trust", file, "--name", "ci")
    result = run("revoke", "ci")
    assert result.exit_code == 2
    assert "several" in result.stderr
