"""Which nodes run a command, as which nodes of which world, and what the command is told of it.

Invariants: pure functions of frozen values; only the placeholders listed here are replaced, so that JSON and
shell code with braces of their own pass through untouched.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.errors import CannotStart
from warmrank.orchestrator.serve.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A node that may run the command, and all that Ray may give away there."""

    node_id: str
    address: str
    host: str
    resources: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One node of one world of ranks.

    Attributes:
        world: which world, from 0; several only where each node runs one of its own.
        node_rank: which node of its world, from 0.
        num_nodes: nodes of its world.
        num_ranks_here: ranks on this node, the same on each.
        num_ranks: ranks of the world.
        master_addr: address of the world's first node.
        master_port: a port that was free there.
        cache_dir: the cache directory.
    """

    world: int
    node_rank: int
    num_nodes: int
    num_ranks_here: int
    num_ranks: int
    master_addr: str
    master_port: int
    cache_dir: str


def choose_hosts(
    hosts: Sequence[Host], *, num_ranks: int, each: Mapping[str, float], replicate: bool, named: bool
) -> tuple[Host, ...]:
    """The nodes that run the command.

    Without names, the fewest on which the ranks fit, as many on each: the emptier of a big cluster's nodes
    stay free. Where each node runs a world of its own, all that can hold one.

    Args:
        hosts: the alive ones, or those that somebody named.
        num_ranks: of a world.
        each: what every rank needs.
        replicate: each node runs a world of its own.
        named: all of ``hosts`` must be used.

    Raises:
        CannotStart: the ranks do not fit.
    """
    rooms = {host.node_id: _room(host, each) for host in hosts}
    if replicate:
        able = tuple(host for host in hosts if rooms[host.node_id] >= num_ranks)
        if not able or (named and len(able) < len(hosts)):
            raise CannotStart(_too_small(hosts, rooms, num_ranks, "a world of its own on each node"))
        return able
    counts = [len(hosts)] if named else range(1, len(hosts) + 1)
    roomy = sorted(hosts, key=lambda host: -rooms[host.node_id])  # stable: equal ones keep their order
    for count in counts:
        if count and num_ranks % count == 0 and rooms[roomy[count - 1].node_id] >= num_ranks // count:
            chosen = {host.node_id for host in roomy[:count]}
            return tuple(host for host in hosts if host.node_id in chosen)
    raise CannotStart(_too_small(hosts, rooms, num_ranks, "as many ranks on each node"))


def places(
    hosts: Sequence[Host], *, num_ranks: int, ports: Sequence[int], replicate: bool, cache_dir: str
) -> tuple[Place, ...]:
    """Where each of the chosen nodes stands; ``ports`` are free ones of each."""
    num_nodes = 1 if replicate else len(hosts)
    return tuple(
        Place(
            world=index if replicate else 0,
            node_rank=0 if replicate else index,
            num_nodes=num_nodes,
            num_ranks_here=num_ranks // num_nodes,
            num_ranks=num_ranks,
            master_addr=hosts[index if replicate else 0].address,
            master_port=ports[index if replicate else 0],
            cache_dir=cache_dir,
        )
        for index in range(len(hosts))
    )


def place_in(world: World, config: Config, *, address: str, port: int) -> Place:
    """This host's place among those that each run the command; ``address`` and ``port`` are its own."""
    return Place(
        world=0,
        node_rank=world.node_rank,
        num_nodes=world.num_nodes,
        num_ranks_here=config.ranks // world.num_nodes,
        num_ranks=config.ranks,
        master_addr=world.master_addr or address,
        master_port=world.master_port or port,
        cache_dir=str(config.cache_dir),
    )


def _room(host: Host, each: Mapping[str, float]) -> int:
    """How many ranks a node can hold."""
    shares = [host.resources.get(name, 0.0) / amount for name, amount in each.items() if amount > 0]
    return math.floor(min(shares, default=0.0) + 1e-9)


def _too_small(hosts: Sequence[Host], rooms: Mapping[str, int], num_ranks: int, wanted: str) -> str:
    there = ", ".join(f"{host.host} ({host.address}) holds {rooms[host.node_id]}" for host in hosts)
    ranks = "1 rank does" if num_ranks == 1 else f"{num_ranks} ranks do"
    return (
        f"{ranks} not fit with {wanted}: {there or 'no node is there'}. Change ranks or "
        "ray.num_cpus_per_rank, or name nodes with --node"
    )


def facts(place: Place) -> dict[str, str]:
    """What a command can be told of its place, by the name of the placeholder."""
    return {
        "node_rank": str(place.node_rank),
        "nnodes": str(place.num_nodes),
        "nproc": str(place.num_ranks_here),
        "ranks": str(place.num_ranks),
        "master_addr": place.master_addr,
        "master_port": str(place.master_port),
        "cache_dir": place.cache_dir,
    }


def filled(word: str, place: Place) -> str:
    """A word of the command with ``{node_rank}`` and the like replaced; other braces stay."""
    known = facts(place)
    return re.sub("{(" + "|".join(known) + ")}", lambda match: known[match[1]], word)


def variables(place: Place, *, journals: str, no_compile: bool) -> dict[str, str]:
    """Environment variables of the command that come of its place.

    Args:
        place: of its node.
        journals: directory in which each rank notes what it loaded and compiled.
        no_compile: a miss is an error.
    """
    forbidden = {"WARMRANK_NO_COMPILE": "1"} if no_compile else {}
    return forbidden | {
        **{f"WARMRANK_{name.upper()}": value for name, value in facts(place).items()},
        "TORCHAIR_CACHE_HOME": place.cache_dir,
        "WARMRANK_JOURNAL_DIR": journals,
    }
