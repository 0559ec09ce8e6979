"""What a process is handed to become a rank, and what it answers when it is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from warmrank.orchestrator.config.models import Config, EntrypointWorkload, groups
from warmrank.orchestrator.seats import Seat
from warmrank.worker.results import RankPlace
from warmrank.worker.settings import settings

if TYPE_CHECKING:
    from warmrank.worker.rank.start import RankSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Everything that a process needs to become a rank.

    As little as that: each rank is sent its own, and the seats of all would be as many times as many.

    Attributes:
        config: the launch.
        seat: which rank this process is, and where.
        master_addr: address that every rank reaches rank 0's node by.
        master_port: port that was free there; 0 for ranks that make no process groups.
        no_compile: compiling is forbidden.
        store_away: why the driver found the store away, so that no rank asks it; its config then says how to
            publish later. Empty when ranks ask it.
    """

    config: Config
    seat: Seat
    master_addr: str
    master_port: int
    no_compile: bool
    store_away: str = ""

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.seat.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A rank that is up; ``problem`` is what did not stop it, empty for nothing."""

    place: RankPlace
    problem: str


def rank_spec(opening: Opening) -> RankSpec:
    """The worker's view of the config and of this rank's seat."""
    from warmrank.worker.rank.start import RankSpec

    config, seat = opening.config, opening.seat
    entry = config.workload if isinstance(config.workload, EntrypointWorkload) else None
    return RankSpec(
        rank=seat.rank,
        world_size=config.ranks,
        local_rank=seat.local_rank,
        local_world_size=seat.local_world_size,
        node_rank=seat.node_rank,
        master_addr=opening.master_addr,
        master_port=opening.master_port,
        device_kind=config.device,
        groups=groups(config),
        entrypoint=entry.entrypoint if entry else "",
        arguments=dict(entry.arguments) if entry else {},
        cache_dir=str(config.cache_dir),
        guards=config.guards,
        engine=config.engine,
        timeout_s=config.timeouts.collective_s,
        no_compile=opening.no_compile or settings().no_compile,
        audited=config.audit != "off" and config.ranks > 1,
    )
