"""The nodes that the other tests here run on: what is theirs alone, and what is left of them."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.netns import Network, Node, network, until
from tests.support.processes import PYTHONPATH, still_there

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
PORT = 5000
SEND = f"""
import socket, sys
listening = socket.create_server(("", {PORT}))
print("up", flush=True)
while True:
    listening.accept()[0].sendall(bytes(int(sys.argv[1])))
"""
RECEIVE = f"""
import socket, sys, time
began_s = time.monotonic()
connection, size = socket.create_connection((sys.argv[1], {PORT}), timeout=2), 0
while chunk := connection.recv(65536):
    size += len(chunk)
    if size == int(sys.argv[2]):
        break
print(size / (time.monotonic() - began_s))
"""
OWNER = """
import sys
from tests.support.netns import network
with network() as net:
    nodes = [net.switch, net.add("n1", 1), net.add("n2", 2)]
    print(net.base, *(node.init for node in nodes), flush=True)
    sys.stdin.read()
"""
SIZE_BYTES = 1_000_000


@pytest.fixture(scope="module")
def net(namespaces: None) -> Iterator[Network]:
    with network() as made:
        for index, name in enumerate(("n1", "n2"), start=1):
            made.add(name, index)
        yield made


@pytest.fixture(scope="module")
def sending(net: Network) -> Node:
    """A node that sends something to whoever connects."""
    node = net.nodes["n2"]
    output = net.base / "send.log"
    node.popen(sys.executable, "-S", "-c", SEND, str(SIZE_BYTES), output=output, environ={})
    until(lambda: "up" in output.read_text(), timeout_s=60, what="the other node listens")
    return node


def receive(net: Network, sender: Node) -> subprocess.CompletedProcess[str]:
    return net.nodes["n1"].run(sys.executable, "-S", "-c", RECEIVE, sender.address, str(SIZE_BYTES))


def test_node_has_a_name_a_disk_and_processes_of_its_own(net: Network) -> None:
    first, second = net.nodes["n1"], net.nodes["n2"]
    assert first.run("uname", "-n").stdout == "n1\n"
    assert first.run("touch", str(net.disk / "mine")).returncode == 0
    assert second.run("test", "-e", str(net.disk / "mine")).returncode == 1
    assert (first.disk / "mine").exists()
    assert "netns_init.py" in first.run("cat", "/proc/1/cmdline").stdout
    assert list(first.processes().values()) == []


def test_cut_link_carries_nothing_until_it_is_mended(net: Network, sending: Node) -> None:
    assert receive(net, sending).returncode == 0
    net.cut(sending)
    assert "timed out" in receive(net, sending).stderr
    net.mend(sending)
    assert receive(net, sending).returncode == 0


def test_switch_keeps_its_address_when_nodes_come_and_go(net: Network) -> None:
    def address() -> str:
        return net.switch.run("ip", "-brief", "link", "show", "br0").stdout.split()[2]

    before, seen = address(), set()
    for index in range(3, 9):
        net.add(f"n{index}", index)
        seen.add(address())
    for index in range(3, 9):
        net.kill(net.nodes[f"n{index}"])
        seen.add(address())
    assert seen == {before}


def test_throttled_node_sends_no_more_than_its_rate(net: Network, sending: Node) -> None:
    with net.throttled(sending, "8mbit"):
        assert float(receive(net, sending).stdout) < 1.5e6  # a rate, of which a burst goes at once


def test_owner_that_is_killed_leaves_no_node() -> None:
    owner = subprocess.Popen(
        (sys.executable, "-c", OWNER),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": PYTHONPATH, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    assert owner.stdout is not None
    base, *pids = owner.stdout.readline().split()
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    shutil.rmtree(base)
    assert len(pids) == 3
    assert still_there(map(int, pids)) == []
