"""What runs on a host: starts Ray there, finds what is running, and ends it. Sent over as text.

Nothing of this package need be installed on the host, so this file imports Python's own library only (from
3.9 on), and Ray in the one action that asks the cluster for its nodes. Invariants: a process belongs to this
cluster iff its environment carries the host's mark, and no other is touched, whatever other Ray runs there;
the directory is this user's own, and only one that this program made is removed. The answer is one line:
`ANSWER` and JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ANSWER = "warmrank-host: "
MARK = "WARMRANK_HOST"
_MADE_BY_US = "made-by-warmrank"
_POLL_S = 0.1
_TAIL_LINES = 12
_GRACE_S = 5.0
"""Seconds from SIGTERM to SIGKILL: with a dashboard one of the processes of the head takes its time."""


class Refused(Exception):
    """The host cannot do what it was asked to; the text says why."""


def main(text: str) -> None:
    """Do what a request says, and print the answer."""
    request = json.loads(text)
    actions = {"start": start, "status": status, "stop": stop, "nodes": nodes}
    try:
        answer = actions[request["action"]](request)
    except Refused as refusal:
        answer = {"failed": str(refusal)}
    except OSError as error:
        answer = {"failed": f"{type(error).__name__}: {error}"}
    print(ANSWER + json.dumps(answer), flush=True)  # noqa: T201 - the answer


def status(request: dict[str, Any]) -> dict[str, Any]:
    """What of this cluster runs here."""
    found = marked(request["mark"])
    raylet = _raylet(found)
    return {"up": raylet is not None, "processes": len(found), **(raylet or {})}


def start(request: dict[str, Any]) -> dict[str, Any]:
    """Start Ray, unless it runs in the session that is asked for; an older one's remains end first."""
    found = status(request)
    if found["up"] and request["session"] in ("", found["session"]):
        return {**found, "was_up": True}
    _end(request["mark"], time.monotonic() + request["timeout_s"] / 2)
    _make_directory(request["directory"])
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *request["options"]]
    command.append(f"--temp-dir={request['directory']}/r")
    environ = {**os.environ, MARK: request["mark"], "PATH": _path_with_interpreter()}
    log = Path(request["directory"], "start.log")
    try:
        _run(command, environ, log, request["timeout_s"])
    except Refused:
        _end(request["mark"], time.monotonic() + 10.0)
        raise
    found = status(request)
    if not found["up"]:
        raise Refused("ray start ended well, and yet no raylet runs\n" + _tail(log))
    return {**found, "was_up": False}


def stop(request: dict[str, Any]) -> dict[str, Any]:
    """End every process of this cluster here, and remove its directory."""
    num_before = len(marked(request["mark"]))
    left = _end(request["mark"], time.monotonic() + request["timeout_s"])
    if left:
        what = "1 process does not end" if len(left) == 1 else f"{len(left)} processes do not end"
        raise Refused(f"{what}: {', '.join(str(pid) for pid in sorted(left))}")
    return {"stopped": num_before, "removed": _remove_directory(request["directory"])}


def nodes(request: dict[str, Any]) -> dict[str, Any]:
    """The cluster's nodes as its head sees them, once the expected ones have joined or the time is over."""
    import ray  # type: ignore[import-untyped,unused-ignore]

    deadline = time.monotonic() + request["timeout_s"]
    ray.init(address=request["address"], log_to_driver=False, configure_logging=False)
    while True:
        alive = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}  # type: ignore[no-untyped-call]
        if alive.keys() >= set(request["expected"]) or time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    return {
        "nodes": {
            name: {"address": node["NodeManagerAddress"], "resources": _countable(node["Resources"])}
            for name, node in alive.items()
        }
    }


def marked(mark: str) -> dict[int, list[str]]:
    """The command lines of this user's processes that carry the mark, by process id.

    Without this one and those above it: a job of the cluster may ask for its end.
    """
    wanted = f"{MARK}={mark}".encode()
    found = {}
    us = _lineage()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if int(path.name) in us or path.stat().st_uid != os.geteuid():
                continue
            if wanted not in (path / "environ").read_bytes().split(b"\0"):
                continue
            words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it ended meanwhile, or is another user's
        if words != [""]:  # else a zombie
            found[int(path.name)] = words
    return found


def _lineage() -> set[int]:
    """This process and all above it."""
    pid, found = os.getpid(), set()
    while pid > 0 and pid not in found:
        found.add(pid)
        try:
            stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        except OSError:
            break  # it ended, and so it is nobody's parent any more
        pid = int(stat.rpartition(")")[2].split()[1])
    return found


def _raylet(found: dict[int, list[str]]) -> dict[str, str] | None:
    for words in found.values():
        if Path(words[0]).name == "raylet":
            options = dict(word.partition("=")[::2] for word in words if word.startswith("--"))
            return {
                "node": options.get("--node_id", ""),
                "address": options.get("--gcs-address", ""),
                "session": options.get("--session-name", ""),
                "node_address": options.get("--node_ip_address", ""),
            }
    return None


def _run(command: list[str], environ: dict[str, str], log: Path, timeout_s: float) -> None:
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - this interpreter
            command,
            env=environ,
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # what it starts outlives the connection
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise Refused(f"ray start did not end within {timeout_s:g} s\n{_tail(log)}") from None
    if code:
        raise Refused(f"ray start ended with {code}\n{_tail(log)}")


def _end(mark: str, deadline: float) -> set[int]:
    """End the raylet first, then all others, and those that do not go by force; returns what is left."""
    left = marked(mark)
    raylets = {pid for pid, words in left.items() if Path(words[0]).name == "raylet"}
    seconds = max(deadline - time.monotonic(), 0.0)
    _signal(mark, raylets, signal.SIGTERM, min(seconds / 3, _GRACE_S))
    _signal(mark, set(marked(mark)), signal.SIGTERM, min(seconds / 3, _GRACE_S))
    last = time.monotonic() + seconds / 3
    while (those := set(marked(mark))) and time.monotonic() < last:
        # Again and again: one of them may just have started another.
        _signal(mark, those, signal.SIGKILL, last - time.monotonic())
    return those


def _signal(mark: str, pids: set[int], number: signal.Signals, wait_s: float) -> None:
    """Signal processes that carry the mark, and wait for them to end."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + wait_s
    while pids & set(marked(mark)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _make_directory(directory: str) -> None:
    """Make it anew, private; what an earlier start left there goes."""
    _remove_directory(directory)
    try:
        Path(directory).mkdir(0o700, parents=True)
    except FileExistsError:
        raise Refused(
            f"{directory} is there, and warmrank did not make it; remove it, or set temp_dir"
        ) from None
    Path(directory, _MADE_BY_US).touch()


def _remove_directory(directory: str) -> bool:
    """Whether there was a directory of ours; another's, or a link, is left alone."""
    path = Path(directory)
    if path.is_symlink() or not (path / _MADE_BY_US).is_file() or path.stat().st_uid != os.getuid():
        return False
    shutil.rmtree(directory, ignore_errors=True)
    return True


def _path_with_interpreter() -> str:
    """PATH with this interpreter's directory first: jobs and workers call ``python`` and ``ray`` by name."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def _countable(resources: dict[str, float]) -> dict[str, float]:
    """CPUs and devices, without memory and the names that Ray gives each node."""
    odd = ("memory", "object_store_memory")
    return {name: amount for name, amount in resources.items() if name not in odd and ":" not in name}


def _tail(log: Path) -> str:
    lines = [line.rstrip() for line in log.read_text("utf-8", "replace").splitlines()]
    return "\n".join([line for line in lines if line][-_TAIL_LINES:])


if __name__ == "__main__":
    main(sys.argv[1])
