"""Nodes in network namespaces, and commands to lame them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.processes import await_true, running, still_there

SUBNET = "10.77.0"
SWITCH = "switch"
START_S = 60.0
_BRIDGE = "02:00:00:00:00:01"
_COMMANDS = ("ip", "tc", "unshare", "nsenter", "mount")
_NEEDED = (
    "ip link add name v0 type veth peer name v1 && ip link add name br0 type bridge && "
    "mount -t tmpfs tmpfs /dev/shm"
)
_OWN = ("--net", "--uts", "--mount", "--ipc", "--pid")
_UNSHARE = ("unshare", *_OWN, "--fork", "--kill-child", "--mount-proc")


def why_not() -> str:
    """Why this machine cannot have such nodes; empty where it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [command for command in _COMMANDS if shutil.which(command) is None]:
        return f"not installed: {', '.join(missing)} (iproute2, util-linux)"
    tried = subprocess.run((*_UNSHARE, "sh", "-c", _NEEDED), capture_output=True, text=True, check=False)
    return f"this kernel gives no namespaces: {tried.stderr.strip()}" if tried.returncode else ""


def until(found: Callable[[], bool], *, timeout_s: float, what: str | Callable[[], str]) -> None:
    """Wait for something to become true.

    Raises:
        TimeoutError: it has not; says ``what``, asked then where it is a function.
    """
    if not await_true(found, timeout_s=timeout_s):
        msg = f"not within {timeout_s:g} s: {what if isinstance(what, str) else what()}"
        raise TimeoutError(msg)


class Node:
    """One node; made by `Network.add`.

    Attributes:
        name: its host name.
        address: its address, which the others reach it by.
        link: the name of its end of the cable at the bridge.
        disk: where `Network.disk` of this node lies on this machine.
    """

    def __init__(self, name: str, index: int, disk: Path, *, binds: Mapping[Path, Path]) -> None:
        self.name = name
        self.address = f"{SUBNET}.{index}"
        self.link = f"v{index}"
        self.disk = disk
        self._running: list[subprocess.Popen[str]] = []
        spec = {"host": name, "binds": {str(source): str(target) for source, target in binds.items()}}
        script = str(Path(__file__).with_name("netns_init.py"))
        self._holder = subprocess.Popen(
            (*_UNSHARE, sys.executable, "-S", script, json.dumps(spec)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the tests, which take their nodes down themselves
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "up\n":
            msg = f"node {name} did not come up"
            raise RuntimeError(msg)
        (self.init,) = _children(self._holder.pid)

    def enter(self, *words: str, cwd: Path = Path("/")) -> tuple[str, ...]:
        """A command line that runs a command in this node; the directory is the node's."""
        there = ("sh", "-c", 'cd "$0" && exec "$@"', str(cwd))
        return ("nsenter", f"--target={self.init}", *_OWN, "--", *there, *words)

    def run(self, *words: str, timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run a command in this node to its end."""
        return subprocess.run(
            self.enter(*words), capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def popen(
        self, *words: str, output: Path, environ: Mapping[str, str], cwd: Path = Path("/")
    ) -> subprocess.Popen[str]:
        """Start a command in this node, which ends with the node at the latest.

        What it says goes to a file, and what it says of errors to one beside it that ends in ``.err``.
        """
        with output.open("w") as file, output.with_suffix(".err").open("w") as errors:
            started = subprocess.Popen(
                self.enter(*words, cwd=cwd),
                stdout=file,
                stderr=errors,
                env=dict(environ),
                text=True,
                start_new_session=True,
            )
        self._running.append(started)
        return started

    def send(self, started: subprocess.Popen[str], number: signal.Signals) -> None:
        """Send a signal to a command that `popen` started (and not to what entered the node for it)."""
        for pid in _children(started.pid):
            os.kill(pid, number)

    def processes(self) -> dict[int, str]:
        """Every process of this node but its first: process id on this machine, and command line."""
        if not self.is_up:
            return {}
        own = Path(f"/proc/{self.init}/ns/pid").readlink()
        found = {}
        for pid, text in running().items():
            with contextlib.suppress(OSError):  # gone meanwhile
                if Path(f"/proc/{pid}/ns/pid").readlink() == own and pid != self.init:
                    found[pid] = text
        return found

    @property
    def is_up(self) -> bool:
        """Whether the node has not been killed."""
        return self._holder.poll() is None

    def kill(self) -> None:
        """End every process of the node at once; its cable goes with it."""
        everyone = [self.init, *self.processes()]
        self._holder.kill()
        self._holder.communicate()
        for started in self._running:
            started.communicate()
        assert still_there(everyone) == []


class Network:
    """The bridge and the nodes; use `network`."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.disk = base / "d"
        self.disk.mkdir()
        (base / "shared").mkdir()
        self.nodes: dict[str, Node] = {}
        self.switch = self._node(SWITCH, 254)
        # By itself a bridge has the lowest address of its cables, so another one when nodes come and go, and
        # for half a minute nodes would look for the server on the switch where it is no more.
        _sh(self.switch, f"ip link add br0 address {_BRIDGE} type bridge && ip link set br0 up")
        _sh(self.switch, f"ip addr add {self.switch.address}/24 dev br0")

    def add(self, name: str, index: int) -> Node:
        """A new node, connected to the bridge."""
        node = self._node(name, index)
        self.nodes[name] = node
        _run("nsenter", f"--target={self.switch.init}", "--net", "--", *_cable(node))
        _sh(self.switch, f"ip link set {node.link} master br0 up")
        _sh(node, f"ip addr add {node.address}/24 dev eth0 && ip link set eth0 up")
        return node

    def cut(self, node: Node) -> None:
        """Pull the cable of a node."""
        _sh(self.switch, f"ip link set {node.link} down")

    def mend(self, node: Node) -> None:
        """Put the cable of a node back in."""
        _sh(self.switch, f"ip link set {node.link} up")

    @contextlib.contextmanager
    def throttled(self, node: Node, rate: str) -> Iterator[None]:
        """Let a node send and receive only so much for a while, in tc's words, such as ``20mbit``."""
        ends = ((self.switch, node.link), (node, "eth0"))
        for place, device in ends:
            _sh(place, f"tc qdisc replace dev {device} root tbf rate {rate} burst 128kb latency 200ms")
        try:
            yield
        finally:
            for place, device in ends:
                _sh(place, f"tc qdisc del dev {device} root")

    def kill(self, node: Node, *, silently: bool = True) -> None:
        """End a node at once; its disk stays.

        Args:
            node: which.
            silently: nobody hears of it, as when the power goes; otherwise its kernel closes its connections.
        """
        del self.nodes[node.name]
        if silently:
            self.cut(node)
        node.kill()

    def close(self) -> None:
        """End every node."""
        for node in [*self.nodes.values(), self.switch]:
            node.kill()

    def _node(self, name: str, index: int) -> Node:
        own = self.base / name
        disk = own / "d"
        for directory in ("home", "tmp"):
            (disk / directory).mkdir(parents=True)
        hosts, resolver = own / "hosts", own / "resolv.conf"
        hosts.write_text(f"127.0.0.1 localhost\n{SUBNET}.{index} {name}\n")
        resolver.write_text("")  # asking a name server that cannot be reached would take 20 s
        binds = {disk: self.disk, hosts: Path("/etc/hosts")}
        if (real := Path("/etc/resolv.conf").resolve()).is_file():
            binds[resolver] = real
        return Node(name, index, disk, binds=binds)


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """A bridge without nodes yet, in a directory with a short path, for as long as the context lasts."""
    base = Path(tempfile.mkdtemp(prefix="wr", dir="/tmp"))  # a socket's path may have 107 bytes
    made = Network(base)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(base)


def _cable(node: Node) -> tuple[str, ...]:
    far_end = ("peer", "name", "eth0", "netns", str(node.init))
    return ("ip", "link", "add", node.link, "type", "veth", *far_end)


def _sh(node: Node, line: str) -> None:
    _run(*node.enter("sh", "-c", line))


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=START_S, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


def _children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # gone meanwhile
            after_name = path.read_text().rpartition(")")[2].split()
            if int(after_name[1]) == pid:
                found.append(int(path.parent.name))
    return found


COMMAND_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A command of warmrank that ended; ``said`` is its output and its errors."""

    exit_code: int
    output: str
    said: str
    seconds: float


@dataclass(slots=True, kw_only=True)
class Running:
    """A command of warmrank that runs in a node; what it says goes to ``lines`` and a file beside it."""

    node: Node
    process: subprocess.Popen[str]
    lines: Path
    began_s: float = field(default_factory=time.monotonic)

    def said(self) -> str:
        """Its output and its errors so far."""
        return self.lines.read_text() + self.lines.with_suffix(".err").read_text()

    def await_said(self, text: str, *, timeout_s: float = COMMAND_S) -> None:
        """Wait until it says something; fails when it ends before."""

        def is_there() -> bool:
            has_ended = self.process.poll() is not None
            if text in self.said():
                return True
            assert not has_ended, f"ended without saying {text!r}:\n{self.said()}"
            return False

        until(is_there, timeout_s=timeout_s, what=lambda: f"{text!r} in {self.said()}")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.node.send(self.process, number)

    def wait(self, *, timeout_s: float = COMMAND_S) -> Ended:
        """Wait for its end."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            msg = f"still running after {timeout_s:g} s:\n{self.said()}"
            raise AssertionError(msg) from None
        seconds = time.monotonic() - self.began_s
        output = self.lines.read_text()
        return Ended(exit_code=self.process.returncode, output=output, said=self.said(), seconds=seconds)
