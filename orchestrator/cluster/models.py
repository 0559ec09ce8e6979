"""The models of a hosts file: which hosts make a Ray cluster, how to reach them, and what each one offers.

Invariant: what reaches a command line of this machine cannot be taken for an option of it.
"""

from __future__ import annotations

import shlex
from typing import Annotated, Literal

from pydantic import Field, GetJsonSchemaHandler, field_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from warmrank.orchestrator.config.strict import Seconds, Strict

HOST_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.:@%-]{0,252}$"
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$"
VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
DIRECTORY_PATTERN = r"^/[^\n\r]{0,23}$"
CONNECT = "ssh -o BatchMode=yes -o ConnectTimeout=10 {host}"

OWN_OPTIONS = (
    *("--head", "--address", "--port", "--block", "--temp-dir", "--node-ip-address", "--resources"),
    *("--num-cpus", "--include-dashboard", "--dashboard-host", "--dashboard-port"),
)
"""Options of `ray start` that follow from other keys."""

Shell = Literal["bash", "sh"]
Words = tuple[Annotated[str, Field(min_length=1)], ...]
Variables = dict[Annotated[str, Field(pattern=VARIABLE_PATTERN)], str]
Resources = dict[Annotated[str, Field(min_length=1)], Annotated[float, Field(ge=0)]]


class HostEntry(Strict):
    """One host; what it leaves out is as the keys beside ``hosts`` say."""

    host: str = Field(
        pattern=HOST_PATTERN, description="what {host} in connect stands for, such as atlas-01 or me@10.0.0.2"
    )
    address: str | None = Field(
        default=None,
        pattern=HOST_PATTERN,
        description="address by which the other hosts reach it; none lets Ray find it",
    )
    connect: str | None = Field(default=None, min_length=1, description="as connect, for this host")
    shell: Shell | None = Field(default=None, description="as shell, for this host")
    python: str | None = Field(default=None, min_length=1, description="as python, for this host")
    source: Words | None = Field(default=None, description="as source, for this host")
    env: Variables = Field(default={}, description="variables beside, and before, those of env")
    num_cpus: int | None = Field(default=None, ge=0, description="as num_cpus, for this host")
    resources: Resources | None = Field(default=None, description="as resources, for this host")
    ray_options: Words | None = Field(default=None, description="as ray_options, for this host")

    @field_validator("connect")
    @classmethod
    def _can_be_split(cls, value: str | None) -> str | None:
        return value if value is None else _command(value)

    @field_validator("ray_options")
    @classmethod
    def _not_ours(cls, value: Words | None) -> Words | None:
        return value if value is None else _options(value)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Say that a bare name may stand for a mapping."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        name = {"type": "string", "pattern": HOST_PATTERN, "description": "a host, as {host: NAME}"}
        return {"anyOf": [name, dict(schema)]}


class HostsFile(Strict):
    """A Ray cluster on plain hosts."""

    name: str = Field(
        default="cluster",
        pattern=NAME_PATTERN,
        description="name of the cluster, the file's stem where none is given; no two clusters of one user "
        "on the same hosts may share it",
    )
    hosts: tuple[HostEntry, ...] = Field(
        description="list of host names, or of mappings such as {host: atlas-01, resources: {NPU: 8}}"
    )
    head: str | None = Field(
        default=None, description="the host that Ray's head runs on, as hosts names it; none: the first"
    )
    connect: str = Field(
        default=CONNECT,
        min_length=1,
        description="command that runs a command on {host}; it gets shell as its last word, and the rest on "
        "its standard input",
    )
    shell: Shell = Field(default="bash", description="bash or sh, on the hosts")
    python: str = Field(
        default="python3",
        min_length=1,
        description="interpreter on the hosts that has Ray, such as ~/venv/bin/python",
    )
    source: Words = Field(
        default=(),
        description="list of shell scripts on the hosts to source first, such as CANN's set_env.sh",
    )
    env: Variables = Field(default={}, description="mapping of environment variables to strings")
    num_cpus: int | None = Field(
        default=None, ge=0, description="CPUs of a host for Ray; none counts them there"
    )
    resources: Resources = Field(
        default={}, description="mapping such as {NPU: 8}; what is not named Ray counts there"
    )
    ray_options: Words = Field(
        default=(),
        description="list of further options of ray start, such as --object-store-memory=1000000000",
    )
    port: int = Field(default=6379, ge=1, le=65535, description="port of Ray's head")
    dashboard_port: int | None = Field(
        default=8265, ge=1, le=65535, description="port of dashboard and job server on the head; null: none"
    )
    dashboard_host: str = Field(
        default="127.0.0.1",
        pattern=HOST_PATTERN,
        description="address that the dashboard listens at; whoever reaches it can run code on the cluster",
    )
    auth_token_file: str | None = Field(
        default=None,
        min_length=1,
        description="file on every host, and where launches start, with Ray's token; none: no authentication",
    )
    temp_dir: str = Field(
        default="/tmp",  # noqa: S108 - a directory below it is made for this user alone
        pattern=DIRECTORY_PATTERN,
        description="directory on the hosts that Ray's own directory is made in; at most 24 characters",
    )
    start_s: Seconds = Field(default=120.0, description="seconds for each host to start, or to answer")
    stop_s: Seconds = Field(default=60.0, description="seconds for each host to stop")

    @field_validator("hosts")
    @classmethod
    def _some_and_each_once(cls, value: tuple[HostEntry, ...]) -> tuple[HostEntry, ...]:
        if not value:
            raise PydanticCustomError("empty", "at least one host")
        names = [entry.host for entry in value]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise PydanticCustomError("twice", "each host once, so not {names} again", {"names": twice})
        return value

    @field_validator("connect")
    @classmethod
    def _can_be_split(cls, value: str) -> str:
        return _command(value)

    @field_validator("ray_options")
    @classmethod
    def _not_ours(cls, value: Words) -> Words:
        return _options(value)


def _command(text: str) -> str:
    """A command that can be split into words.

    Raises:
        PydanticCustomError: a quote has no end.
    """
    try:
        shlex.split(text)
    except ValueError as error:
        raise PydanticCustomError("command", "a command line ({why})", {"why": str(error).lower()}) from None
    return text


def _options(words: Words) -> Words:
    for word in words:
        name = word.partition("=")[0]
        if not word.startswith("--") or name in OWN_OPTIONS:
            raise PydanticCustomError(
                "option",
                "options of ray start as --NAME=VALUE, but not {own}",
                {"own": ", ".join(OWN_OPTIONS)},
            )
    return words
