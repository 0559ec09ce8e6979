"""What may be asked of an object store's client, and what it says when nobody answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

pytest.importorskip("obstore", reason="object stores are an extra: pip install 'warmrank[s3]'")

from obstore.exceptions import GenericError

from warmrank.cache_store.backends.objects.client import store_error
from warmrank.cache_store.backends.objects.connection import connect
from warmrank.cache_store.backends.objects.store import ObjectBackend
from warmrank.cache_store.errors import StoreUnavailable

URL = "s3://bucket/prefix"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.s3_server import ENVIRONMENT

    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port where connections are made and nobody says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port that refuses connections, because who has it does not listen."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        yield closed.getsockname()[1]


def options(port: int) -> dict[str, str]:
    return {"endpoint": f"http://127.0.0.1:{port}"}


def refusal(url: str, **opened: object) -> str:
    with pytest.raises(StoreUnavailable) as caught:
        connect(url, answer_s=1.0, options=opened)  # type: ignore[arg-type]
    assert not caught.value.transport
    return str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["file:///mnt/x", "memory:///", "http://host/x", "https://host/x", "ftp://host/x", "/mnt/x"],
)
def test_url_of_no_object_store_is_refused(url):
    assert "is none of an object store; name a directory by its path, or" in refusal(url)


def test_password_in_the_url_is_refused_and_not_repeated():
    message = refusal("s3://user:hunter2@bucket/prefix")
    assert "credentials come from the environment" in message
    assert "hunter2" not in message


def test_plain_http_must_be_allowed(monkeypatch, free_port):
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(StoreUnavailable, match="begins with http://") as caught:
        ObjectBackend(URL, options=options(free_port))
    assert 'set AWS_ALLOW_HTTP=true, or allow_http: "true" in the store\'s options' in str(caught.value)
    assert not caught.value.transport  # nobody was asked, so nothing is known of the place


@pytest.mark.parametrize(
    "url", ["az://account/container/x", "abfss://container@account.dfs.core.windows.net/x"]
)
def test_each_cloud_has_its_own_variables(monkeypatch, url, free_port):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "bm90LWEtc2VjcmV0")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"http://127.0.0.1:{free_port}")
    with pytest.raises(StoreUnavailable, match="set AZURE_ALLOW_HTTP=true"):
        ObjectBackend(url)
    monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
    with pytest.raises(StoreUnavailable, match="connection was refused"):
        ObjectBackend(url)


def test_refused_connection_is_said_at_once(free_port):
    with pytest.raises(StoreUnavailable, match="the connection was refused; check that the") as caught:
        ObjectBackend(URL, answer_s=1e6, options=options(free_port))
    assert caught.value.transport


def test_silent_server_is_unavailable(silent_port):
    with pytest.raises(StoreUnavailable, match="no answer in time") as caught:
        ObjectBackend(URL, answer_s=0.3, options=options(silent_port))
    assert caught.value.transport


@pytest.mark.parametrize(
    ("url", "asked", "variable"),
    [
        (URL, "PUT http://169.254.169.254/latest/api/token", "AWS_SECRET_ACCESS_KEY"),
        ("gs://bucket/x", "GET http://169.254.169.254/computeMetadata/v1/instance", "GOOGLE_SERVICE_ACCOUNT"),
        (
            "az://account/x",
            "GET http://169.254.169.254/metadata/identity/oauth2/token",
            "AZURE_STORAGE_ACCOUNT_KEY",
        ),
    ],
)
@pytest.mark.parametrize("end", ["HTTP error", "Server returned non-2xx status code: 403 Forbidden"])
def test_missing_credentials_name_the_variables(url, asked, variable, end):
    error = store_error(GenericError(f"Error performing {asked} in 1s - {end}"), what="x", where=url)
    assert "no credentials were found" in str(error)
    assert f"{variable}, with the rights to" in str(error)
