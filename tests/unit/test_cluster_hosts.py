"""Hosts files: what is accepted, what is refused, and what each host is told."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from warmrank.orchestrator.cluster.hosts import Hosts, host_directory, load_hosts
from warmrank.orchestrator.cluster.models import OWN_OPTIONS
from warmrank.orchestrator.cluster.script import shell_script, start_request, status_request
from warmrank.orchestrator.errors import ConfigError

EXAMPLES = sorted((Path(__file__).parents[2] / "cluster_configs" / "hosts").glob("*.yaml"))


def load(tmp_path: Path, **data: Any) -> Hosts:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"hosts": ["a", "b"], **data}))
    return load_hosts(path)


def refusal(tmp_path: Path, **data: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, **data)
    return str(caught.value)


def test_names_alone_make_a_cluster_over_ssh(tmp_path: Path):
    hosts = load(tmp_path)
    assert (hosts.name, hosts.head.name, [host.name for host in hosts.others]) == ("mine", "a", ["b"])
    assert hosts.head.connect == ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "a", "bash")


def test_head_may_be_any_host(tmp_path: Path):
    hosts = load(tmp_path, head="b")
    assert [(host.name, host.is_head) for host in hosts.all] == [("b", True), ("a", False)]


def test_host_takes_what_it_does_not_say_from_the_file(tmp_path: Path):
    own = {"host": "b", "resources": {"NPU": 16}, "env": {"B": "2"}, "python": "~/b", "source": []}
    hosts = load(
        tmp_path,
        hosts=["a", own],
        resources={"NPU": 8, "GPU": 1},
        num_cpus=4,
        env={"A": "1", "B": "1"},
        source=["/set_env.sh"],
    )
    first, second = hosts.all
    assert first.ray_options == ("--num-cpus=4", "--num-gpus=1", '--resources={"NPU": 8.0}')
    assert second.ray_options == ("--num-cpus=4", '--resources={"NPU": 16.0}')
    assert dict(second.env).items() >= {"A": "1", "B": "2"}.items()
    assert (first.source, second.source) == (("/set_env.sh",), ())
    assert (first.python, second.python) == ("python3", "~/b")


def test_authentication_is_off_unless_a_token_is_named(tmp_path: Path):
    """A token in a user's home would turn it on at some hosts only."""
    assert dict(load(tmp_path).head.env)["RAY_AUTH_MODE"] == "disabled"
    env = dict(load(tmp_path, auth_token_file="/etc/ray.token").head.env)  # noqa: S106 - a path
    assert (env["RAY_AUTH_MODE"], env["RAY_AUTH_TOKEN_PATH"]) == ("token", "/etc/ray.token")


@pytest.mark.parametrize(
    ("data", "key", "expected"),
    [
        ({"hosts": []}, "hosts", "at least one host"),
        ({"hosts": ["a", "a"]}, "hosts", "each host once"),
        ({"hosts": ["-oProxyCommand=id"]}, "hosts.0.host", "should match pattern"),
        ({"hosts": [{"host": "a", "addres": "x"}]}, "hosts.0.addres", "did you mean hosts.0.address?"),
        ({"hosts": [{"address": "x"}]}, "hosts.0.host", "this key"),
        ({"hosts": [{"host": "a", "address": "x"}, {"host": "b", "address": "x"}]}, "hosts", "address once"),
        ({"conect": "ssh {host}"}, "conect", "did you mean connect?"),
        ({"connect": "ssh 'x"}, "connect", "no closing quotation"),
        ({"connect": "env"}, "connect", "{host} in it"),
        ({"head": "aa"}, "head", "did you mean a?"),
        ({"port": 0}, "port", "greater than or equal to 1"),
        ({"env": {"A B": "1"}}, "env.A B", "should match pattern"),
        ({"ray_options": ["--block"]}, "ray_options", "options of ray start"),
        ({"ray_options": ["-v"]}, "ray_options", "options of ray start"),
        ({"temp_dir": "tmp"}, "temp_dir", "directory on the hosts"),
        ({"start_s": 0}, "start_s", "greater than 0"),
        ({"auth_token_file": "/t", "env": {"RAY_AUTH_MODE": "token"}}, "env.RAY_AUTH_MODE", "one of the two"),
    ],
)
def test_mistake_is_named_by_its_key(tmp_path: Path, data: dict[str, Any], key: str, expected: str):
    text = refusal(tmp_path, **data)
    assert f"mine.yaml: {key}: found" in text
    assert expected in text


def test_hosts_that_one_command_reaches_are_named_with_their_keys(tmp_path: Path):
    hosts = [{"host": "a", "connect": "env"}, "b", {"host": "c", "connect": "env"}]
    text = refusal(tmp_path, hosts=hosts)
    assert "hosts.0.connect, hosts.2.connect: found 'env'" in text
    assert "because a, c are all reached by it" in text
    assert "env WHERE={host}" in text


def test_choices_are_said_once(tmp_path: Path):
    assert "expected bash or sh, on the hosts" in refusal(tmp_path, shell="zsh")  # noqa: S604 - a key of the file


@pytest.mark.parametrize("option", OWN_OPTIONS)
def test_options_that_follow_from_other_keys_are_refused(tmp_path: Path, option: str):
    assert "ray_options" in refusal(tmp_path, ray_options=[f"{option}=1"])


def test_all_mistakes_come_at_once(tmp_path: Path):
    assert len(refusal(tmp_path, port=0, guess=1, nam="x").splitlines()) == 3


def test_values_of_variables_are_not_shown(tmp_path: Path):
    assert "12345" not in refusal(tmp_path, env={"TOKEN": 12345})


def test_directories_are_short_enough_for_the_sockets_below_them():
    assert host_directory("/scratch/", "c", "n1") == "/scratch/wr-c-n1"
    long = {host_directory("/" + "d" * 23, "c" * 32, "h" * 200 + end) for end in ("1", "2")}
    assert len(long) == 2
    assert (
        max(map(len, long)) + len("/r/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store") <= 107
    )


WORDS = ["plain", "two words", "it's", '"', "$HOME", "`id`", "$(id)", "a\nb", "\\", ";&|<>", "--x", "END"]


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("word", WORDS)
def test_value_arrives_at_a_host_as_it_is_written(tmp_path: Path, shell: str, word: str):
    """Through a shell that gets the whole script on its standard input, and a second one, as by ssh."""
    (tmp_path / "set env.sh").write_text('printf "%s" "$VALUE" > "$OUT"; cat; echo noise\n')
    program = tmp_path / "interpreter"
    program.write_text('#!/bin/sh\nprintf "%s" "$2" > "$OUT.request"\n')
    program.chmod(0o700)
    env = {"VALUE": word, "OUT": str(tmp_path / "out")}
    keys: dict[str, Any] = {
        "hosts": ["a"],
        "connect": "sh -c",
        "shell": shell,
        "env": env,
        "source": [str(tmp_path / "set env.sh")],
        "python": str(program),
    }
    hosts = load(tmp_path, **keys)
    script = shell_script(hosts.head, {"word": word})
    subprocess.run(hosts.head.connect, input=script, text=True, check=True, timeout=20)
    assert (tmp_path / "out").read_text() == word
    assert json.loads((tmp_path / "out.request").read_text()) == {"word": word}


def test_home_of_an_interpreter_is_that_of_the_host(tmp_path: Path):
    hosts = load(tmp_path, hosts=[{"host": "a", "python": "~/my venv/bin/python"}])
    assert "\"$HOME\"/'my venv/bin/python' - " in shell_script(hosts.head, status_request(hosts.head))


def test_host_gives_up_before_its_connection_is_cut(tmp_path: Path):
    hosts = load(tmp_path, start_s=100)
    assert start_request(hosts, hosts.head)["timeout_s"] < 100


def test_dashboard_listens_on_the_head_only_unless_it_is_said(tmp_path: Path):
    hosts = load(tmp_path)
    assert "--dashboard-host=127.0.0.1" in start_request(hosts, hosts.head)["options"]
    hosts = load(tmp_path, dashboard_port=None)
    assert "--include-dashboard=false" in start_request(hosts, hosts.head)["options"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_loads(path: Path):
    hosts = load_hosts(path)
    assert shlex.join(hosts.head.connect).startswith("ssh ")
    assert path.read_text().count("# ") > 5


def test_there_are_examples():
    assert EXAMPLES
