"""What a process is handed to become a rank, and what it answers when it is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.config.models import Config, EntrypointWorkload, groups
from orchestrator.gang.launcher import Gang
from worker.results import RankPlace
from worker.settings import settings

if TYPE_CHECKING:
    from worker.rank_spec import RankSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Everything that a process needs to become a rank.

    Attributes:
        config: the launch.
        gang: all ranks and where they meet.
        rank: which of them this process is.
        no_compile: compiling is forbidden.
        store_away: why the driver found the store away, so that no rank asks it; its config then says how to
            publish later. Empty when ranks ask it.
    """

    config: Config
    gang: Gang
    rank: int
    no_compile: bool
    store_away: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A rank that is up; ``problem`` is what did not stop it, empty for nothing."""

    place: RankPlace
    problem: str


def rank_spec(opening: Opening) -> RankSpec:
    """The worker's view of the config and of this rank's seat."""
    from worker.rank_spec import RankSpec

    config, gang = opening.config, opening.gang
    seat = gang.seats[opening.rank]
    entry = config.workload if isinstance(config.workload, EntrypointWorkload) else None
    return RankSpec(
        rank=seat.rank,
        world_size=len(gang.seats),
        local_rank=seat.local_rank,
        local_world_size=seat.local_world_size,
        node_rank=seat.node_rank,
        master_addr=gang.master_addr,
        master_port=gang.master_port,
        device_kind=config.device,
        groups=groups(config),
        entrypoint=entry.entrypoint if entry else "",
        arguments=dict(entry.arguments) if entry else {},
        cache_dir=str(config.cache_dir),
        guards=config.guards,
        engine=config.engine,
        timeout_s=config.timeouts.collective_s,
        no_compile=opening.no_compile or settings().no_compile,
    )
