"""Process 1 of a node that is a set of namespaces: ``netns_init.py SPEC``; see `tests.support.netns`.

It gives the node its host name and its private directories, says ``up``, and ends when its input does, which
is when whoever started it ends, in whatever way. With it the kernel ends every process of the node.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys


def main() -> None:
    spec = json.loads(sys.argv[1])
    socket.sethostname(spec["host"])
    for source, target in spec["binds"].items():
        _run("mount", "--bind", source, target)
    _run("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")  # noqa: S108 - a private one, so that it goes with the node
    _run("ip", "link", "set", "lo", "up")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the orphans of a node are its process 1's to bury
    sys.stdout.write("up\n")
    sys.stdout.flush()
    sys.stdin.read()


def _run(*words: str) -> None:
    subprocess.run(words, check=True)


if __name__ == "__main__":
    main()
