"""The nodes that run a command, as the driver talks to them: here in this process, or by Ray (`ray_crew`)."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.serve.node import ServingNode
from warmrank.orchestrator.serve.places import Host


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The answer of a node that gives none any more."""

    reason: str


class Crew(Protocol):
    """Nodes by their position in ``hosts``."""

    hosts: tuple[Host, ...]
    captured: bool
    """Whether the output of the nodes comes through `orchestrator.serve.answers.State`."""

    def ask(self, method: str, arguments: Mapping[int, Sequence[Any]], *, timeout_s: float) -> dict[int, Any]:
        """Call a method of `ServingNode` on nodes, all at once.

        Returns:
            Each node's answer, or `Lost`.

        Raises:
            Exception: the first that a node raised.
        """

    def close(self) -> None:
        """Let the nodes go."""


class LocalCrew:
    """This node alone, without Ray."""

    def __init__(self, config: Config) -> None:
        host = socket.gethostname()
        self.hosts: tuple[Host, ...] = (Host(node_id="", address="127.0.0.1", host=host, resources={}),)
        self.captured = False
        self._node = ServingNode(config)

    def ask(self, method: str, arguments: Mapping[int, Sequence[Any]], *, timeout_s: float) -> dict[int, Any]:
        """See `Crew.ask`; nothing here needs the time-out."""
        del timeout_s
        return {index: getattr(self._node, method)(*given) for index, given in arguments.items()}

    def close(self) -> None:
        """See `Crew.close`."""
        self._node.close()
