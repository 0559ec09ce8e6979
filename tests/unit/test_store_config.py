"""The store in a config: one place or several, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from warmrank.orchestrator.config.reading import Config, load, parse
from warmrank.orchestrator.config.store import StoreConfig, is_secret
from warmrank.orchestrator.errors import ConfigError

HEAD: dict[str, Any] = {"workload": {"entrypoint": "models.tiny:workload"}, "ranks": 1}
FILE = 'workload: {entrypoint: "models.tiny:workload"}\nranks: 1\n'


def config_of(store: Any) -> Config:
    return parse({**HEAD, "store": store})


def store_of(store: Any) -> StoreConfig:
    found = config_of(store).store
    assert found is not None
    return found


def refusal(store: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        config_of(store)
    return str(caught.value)


def test_override_sets_the_single_place(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(FILE + "store: {path: /s}\n")
    found = load(
        tmp_path / "tiny.yaml", ("store.path=s3://b/p", "store.mode=off", "store.mode=required")
    ).store
    assert found is not None
    assert (found.tiers[0].path, found.tiers[0].mode) == ("s3://b/p", "required")


def test_override_reaches_into_a_tier(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(FILE + "store: {tiers: [{path: /near}, {path: /far}]}\n")
    found = load(tmp_path / "tiny.yaml", ("store.tiers.1.mode=ro",)).store
    assert found is not None
    assert [tier.mode for tier in found.tiers] == ["rw", "ro"]


def test_misspelt_key_of_the_single_place_is_named_as_it_was_written() -> None:
    text = refusal({"path": "/s", "anser_s": 3})
    assert "store.anser_s: found an unknown key with value 3 (int)" in text
    assert "did you mean store.answer_s?" in text


@pytest.mark.parametrize(
    ("store", "key"),
    [
        ({}, "store.path"),
        ({"tiers": []}, "store.tiers"),
        ({"tiers": [{"path": "/a"}, {"path": "/b"}, {"path": "/c"}]}, "store.tiers"),
        ({"tiers": [{}]}, "store.tiers.0.path"),
        ({"path": ""}, "store.path"),
        ({"path": "/s", "mode": "readonly"}, "store.mode"),
        ({"path": "/s", "mode": True}, "store.mode"),
        ({"path": "/s", "flush": "sync"}, "store.flush"),
        ({"path": "/s", "answer_s": 0}, "store.answer_s"),
        ({"path": "s3://b", "options": {"allow_http": True}}, "store.options.allow_http"),
        ({"path": "s3://b", "options": {"regoin": "x"}}, "store.options.regoin"),
        ({"path": "s3://b", "options": {"allow_http": "maybe"}}, "store.options.allow_http"),
        ({"path": "s3:/bucket/x"}, "store.path"),
        ({"tiers": [{"path": "/s"}, {"path": "/x/../s/"}]}, "store.tiers"),
        ({"tiers": [{"path": "s3://b/p"}, {"path": "s3://b/p/"}]}, "store.tiers"),
        ({"path": "/s", "options": {"region": "x"}}, "store.options"),
        ({"path": "ftp://host/s"}, "store.path"),
        ([{"path": "/s"}], "store"),
    ],
)
def test_unusable_value_is_refused_once_by_its_key(store: Any, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(store)
    assert [problem.key for problem in caught.value.problems] == [key]


SECRET = "hunter2"  # noqa: S105 - what must never be shown


@pytest.mark.parametrize(
    "store",
    [
        {"path": "s3://b", "options": {"aws_secret_access_key": SECRET}},
        {"path": "s3://b", "options": {"token": 3, "secret": SECRET}},
        {"path": "s3://b", "aws_secret_access_key": SECRET},
        {"path": f"s3://user:{SECRET}@bucket/prefix"},
        {"tiers": [{"path": "s3://b", "options": {"account_key": SECRET}}]},
    ],
    ids=["option", "two options", "key", "url", "tier"],
)
def test_secret_is_refused_and_not_shown(store: Any) -> None:
    text = refusal(store)
    assert SECRET not in text
    assert "not shown here" in text


@pytest.mark.parametrize("word", ["true", "False", "ON", "0"])
def test_switch_takes_words_for_on_and_off(word: str) -> None:
    assert (
        store_of({"path": "s3://b", "options": {"allow_http": word}}).tiers[0].options["allow_http"] == word
    )


def test_secret_of_an_override_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(FILE + "store: {path: 's3://b'}\n")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "tiny.yaml", (f"store.secret_key={SECRET}",))
    assert SECRET not in str(caught.value)
    assert "--set store.secret_key: store.secret_key" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aws_secret_access_key", True),
        ("access_key_id", True),
        ("session_token", True),
        ("account_key", True),
        ("sas_key", True),
        ("sse_customer_key_base64", True),
        ("client_secret", True),
        ("password", True),
        ("google_application_credentials", True),
        ("region", False),
        ("endpoint", False),
        ("skip_signature", False),
        ("virtual_hosted_style_request", False),
        ("sse_kms_key_id", False),
        ("account_name", False),
        ("container_credentials_relative_uri", False),
    ],
)
def test_options_that_hold_secrets_are_known_by_their_names(name: str, *, expected: bool) -> None:
    assert is_secret(name) is expected
