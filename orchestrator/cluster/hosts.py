"""From a hosts file to one frozen value for each host: pure but for reading the file.

Every mistake of a file is found at once. What a variable holds is never shown, for it may be a secret.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from warmrank.orchestrator.cluster.errors import hosts_text
from warmrank.orchestrator.cluster.models import HostEntry, HostsFile
from warmrank.orchestrator.config.problems import expected_text, refuse_other_kind, shown
from warmrank.orchestrator.config.yaml_files import problem, read_mapping, refuse_odd_values
from warmrank.orchestrator.errors import ConfigError, ConfigProblem

_LONGEST_DIRECTORY = 40
"""Bytes of a host's directory: paths of sockets, which Ray makes up to 67 bytes further down, end at 107."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host of a cluster, with everything that it takes from the file as a whole.

    Attributes:
        name: as the file says.
        mark: what the environment of each of its processes carries, so that they can be found.
        is_head: whether Ray's head runs there.
        address: by which others reach it; empty lets Ray find it.
        connect: words of the command that runs a shell there.
        python: interpreter there; may begin with ``~/``.
        source: scripts that are sourced there first.
        env: variables that are set there.
        ray_options: for `ray start`, without those that depend on where the head is.
        directory: for Ray's files and its log, made by `up` and removed by `down`.
    """

    name: str
    mark: str
    is_head: bool
    address: str
    connect: tuple[str, ...]
    python: str
    source: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    ray_options: tuple[str, ...]
    directory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """A cluster as its hosts file describes it.

    Attributes:
        name: of the cluster.
        path: of the file.
        head: the host with Ray's head.
        others: all other hosts, in the file's order.
        port: of the head.
        dashboard_host: address that its dashboard listens at.
        dashboard_port: 0 for no dashboard.
        auth_token_file: empty for no authentication.
        start_s: seconds for a host to start.
        stop_s: seconds for a host to stop.
    """

    name: str
    path: str
    head: Host
    others: tuple[Host, ...]
    port: int
    dashboard_host: str
    dashboard_port: int
    auth_token_file: str
    start_s: float
    stop_s: float

    @property
    def all(self) -> tuple[Host, ...]:
        """Every host, the head first."""
        return (self.head, *self.others)


def load_hosts(path: Path) -> Hosts:
    """Read a hosts file.

    Raises:
        ConfigError: the file cannot be read, or anything in it is not as expected.
    """
    try:
        return _loaded(path)
    except ConfigError as error:
        raise ConfigError(error.problems, document="hosts file") from error.__cause__


def _loaded(path: Path) -> Hosts:
    data = read_mapping(path, expected="keys such as hosts and connect")
    refuse_other_kind(data, str(path), wanted="hosts file")
    refuse_odd_values(data, str(path))
    data.setdefault("name", re.sub(r"[^A-Za-z0-9._-]", "-", path.stem)[:32])
    try:
        file = HostsFile.model_validate_json(json.dumps(_in_full(data)), strict=True)
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise ConfigError([_translate(detail, str(path)) for detail in details]) from None
    if problems := tuple(_contradictions(file, str(path))):
        raise ConfigError(problems)
    return resolve(file, str(path))


def _in_full(data: dict[str, Any]) -> dict[str, Any]:
    """The data with a mapping in place of each bare name of a host."""
    entries = data.get("hosts")
    if not isinstance(entries, list):
        return data
    full = [{"host": entry} if isinstance(entry, str) else entry for entry in entries]
    return {**data, "hosts": full}


def resolve(file: HostsFile, path: str) -> Hosts:
    """Hand what the file says of all hosts to each of them."""
    head = file.head or file.hosts[0].host
    found = {entry.host: _host(file, entry, is_head=entry.host == head) for entry in file.hosts}
    return Hosts(
        name=file.name,
        path=path,
        head=found[head],
        others=tuple(host for name, host in found.items() if name != head),
        port=file.port,
        dashboard_host=file.dashboard_host,
        dashboard_port=file.dashboard_port or 0,
        auth_token_file=file.auth_token_file or "",
        start_s=file.start_s,
        stop_s=file.stop_s,
    )


def _host(file: HostsFile, entry: HostEntry, *, is_head: bool) -> Host:
    words = shlex.split(entry.connect or file.connect)
    shell = entry.shell or file.shell
    return Host(
        name=entry.host,
        mark=f"{file.name}/{entry.host}",
        is_head=is_head,
        address=entry.address or "",
        connect=(*(word.replace("{host}", entry.host) for word in words), shell),
        python=entry.python or file.python,
        source=file.source if entry.source is None else entry.source,
        env=tuple({**_ray_variables(file), **file.env, **entry.env}.items()),
        ray_options=_ray_options(file, entry),
        directory=host_directory(file.temp_dir, file.name, entry.host),
    )


def _ray_variables(file: HostsFile) -> dict[str, str]:
    """Said outright: otherwise a token in a user's home turns authentication on, at some hosts only."""
    if file.auth_token_file is None:
        return {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": file.auth_token_file,
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _ray_options(file: HostsFile, entry: HostEntry) -> tuple[str, ...]:
    num_cpus = file.num_cpus if entry.num_cpus is None else entry.num_cpus
    resources = file.resources if entry.resources is None else entry.resources
    gpus = {name: amount for name, amount in resources.items() if name == "GPU"}
    other = {name: amount for name, amount in resources.items() if name != "GPU"}
    return (
        *([f"--node-ip-address={entry.address}"] if entry.address else []),
        *([f"--num-cpus={num_cpus}"] if num_cpus is not None else []),
        *(f"--num-gpus={amount:g}" for amount in gpus.values()),
        *([f"--resources={json.dumps(other)}"] if other else []),
        *(file.ray_options if entry.ray_options is None else entry.ray_options),
    )


def host_directory(base: str, cluster: str, host: str) -> str:
    """The directory of a host: told apart by its names where they are short, for sockets lie below it."""
    plain = f"{base.rstrip('/')}/wr-{cluster}-{host}"
    if len(plain) <= _LONGEST_DIRECTORY:
        return plain
    digest = hashlib.sha256(f"{cluster}/{host}".encode()).hexdigest()[:12]
    return f"{base.rstrip('/')}/wr-{digest}"


def _contradictions(file: HostsFile, place: str) -> Iterator[ConfigProblem]:
    """What is wrong between keys that are right by themselves."""
    names = [entry.host for entry in file.hosts]
    if file.head is not None and file.head not in names:
        (nearest, *_) = [*difflib.get_close_matches(file.head, names, n=1), ""]
        expected = f"one of the hosts: {', '.join(names)}"
        yield ConfigProblem(
            place=place, key="head", found=shown(file.head), expected=expected, nearest=nearest
        )
    yield from _shared_connections(file, place)
    addresses = [entry.address for entry in file.hosts if entry.address]
    for address in sorted({each for each in addresses if addresses.count(each) > 1}):
        yield problem(place, "hosts", f"the address {address} twice", "each address once")
    if file.auth_token_file is not None and "RAY_AUTH_MODE" in file.env:
        yield problem(place, "env.RAY_AUTH_MODE", "it beside auth_token_file", "one of the two")


def _shared_connections(file: HostsFile, place: str) -> Iterator[ConfigProblem]:
    """A command without {host} that would reach one and the same host for several."""
    reached: dict[str, list[int]] = {}
    for index, entry in enumerate(file.hosts):
        reached.setdefault(entry.connect or file.connect, []).append(index)
    for command, indices in sorted(reached.items()):
        if "{host}" not in command and len(indices) > 1:
            keys = (f"hosts.{index}.connect" if file.hosts[index].connect else "connect" for index in indices)
            names = hosts_text(file.hosts[index].host for index in indices)
            expected = (
                f"{{host}} in it, because {names} are all reached by it; for several on one machine, "
                "such as env WHERE={host}"
            )
            yield problem(place, ", ".join(dict.fromkeys(keys)), shown(command), expected)


def _translate(detail: ErrorDetails, place: str) -> ConfigProblem:
    """A detail of pydantic as a problem that names the key as it is written."""
    where = tuple(str(part) for part in detail["loc"] if part != "[key]")
    in_entry = where[:1] == ("hosts",) and len(where) > 2
    model = HostEntry if in_entry else HostsFile
    key, known = (where[2] if in_entry else where[0] if where else ""), tuple(model.model_fields)
    field = model.model_fields.get(key)
    description = (field.description or "") if field else ""
    secret = "env" in where
    found = "(a value that is not shown here)" if secret else shown(detail["input"])
    expected, nearest = expected_text(detail["msg"], description), ""
    if detail["type"] == "extra_forbidden":
        found, expected = f"an unknown key with value {found}", f"only {', '.join(known)}"
        close = difflib.get_close_matches(key, known, n=1)
        nearest = ".".join((*where[:-1], *close)) if close else ""
    elif detail["type"] == "missing":
        found, expected = "nothing", f"this key: {description}"
    return ConfigProblem(place=place, key=".".join(where), found=found, expected=expected, nearest=nearest)
