"""Nodes that serve each other in this process, and what goes wrong with them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tests.support.launched import loaded_config, store_launch
from tests.support.stored import tree
from warmrank.cache_store.fetching.intake import Intake
from warmrank.cache_store.fetching.pace import Pace
from warmrank.cache_store.parallel import each
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.seed.here import seed_here
from warmrank.orchestrator.seed.outcome import NodeSeed
from warmrank.orchestrator.seed.receiving import Receiver, SourceGone
from warmrank.orchestrator.seed.serving import Answer, Part, Serving


class LocalSource:
    """A `ChunkSource` that asks a `Serving` of this process.

    Args:
        serving: whose chunks.
        damage: changes a chunk on its way.
        dies_after: chunks that it gives before it is gone; None for never.
    """

    def __init__(
        self,
        serving: Serving[bytes],
        *,
        damage: Callable[[int, bytes], bytes] = lambda _, data: data,
        dies_after: int | None = None,
    ) -> None:
        self.taken: list[int] = []
        self._serving = serving
        self._damage = damage
        self._dies_after = dies_after
        self._lock = threading.Lock()

    def offer(self, num_known: int, wanted: Sequence[int]) -> Answer[bytes]:
        return self._serving.offer(num_known, wanted)

    def fetch(self, answer: Answer[bytes]) -> bytes:
        assert answer.index is not None
        with self._lock:
            if self._dies_after is not None and len(self.taken) >= self._dies_after:
                raise SourceGone("a node that serves others is gone")
            self.taken.append(answer.index)
        self._serving.had(answer.index)
        return self._damage(answer.index, answer.refs[0])


class FakeNodes:
    """A store with a launch, and nodes that have a directory each; the first is seeded, and serves alone.

    Args:
        root: where all of it is.
        functions: what the launch stored.
        chunk_bytes: size of a chunk.
    """

    def __init__(self, root: Path, functions: dict[str, bytes], *, chunk_bytes: int) -> None:
        self.root = root
        self.config = loaded_config(root)
        self._chunk_bytes = chunk_bytes
        store_launch(self.config, root / "work", functions=functions)
        self.serving = self.new_serving(Part(num_sources=1, position=0, num_receivers=1))
        self.first = seed_here(self.node("first"), intake=Intake(held=self.serving.hold))
        self.serving.close()

    def new_serving(self, part: Part) -> Serving[bytes]:
        serving: Serving[bytes] = Serving(bytes, chunk_bytes=self._chunk_bytes)
        serving.begin(part)
        return serving

    def node(self, name: str) -> Config:
        return self.config.model_copy(update={"cache_dir": self.root / name})

    def receive(self, source: LocalSource, *, name: str = "other", pace: Pace | None = None) -> NodeSeed:
        """Seed a node from another one; the reason is why not all came from there."""
        mine = self.new_serving(Part(num_sources=1, position=None, num_receivers=0))
        receiver = Receiver({0: source}, 1, mine, pace=pace)
        found = seed_here(self.node(name), intake=Intake(supply=receiver, pace=pace))
        return replace(found, reason=receiver.problem)

    def fan_out(
        self, names: Sequence[str], *, broken: Callable[[int, Serving[bytes]], LocalSource] | None = None
    ) -> list[NodeSeed]:
        """Seed nodes all at once, each reading a share of the store for all.

        Args:
            names: the nodes.
            broken: makes what the others see of a node; None where nothing goes wrong.
        """
        count = len(names)
        parts = [Part(num_sources=count, position=n, num_receivers=count - 1) for n in range(count)]
        servings = [self.new_serving(part) for part in parts]
        sources = [(broken or (lambda _, s: LocalSource(s)))(n, s) for n, s in enumerate(servings)]

        def seed(position: int) -> NodeSeed:
            others = {n: source for n, source in enumerate(sources) if n != position}
            receiver = Receiver(others, count, servings[position], pace=None)
            intake = Intake(supply=receiver, held=servings[position].hold)
            try:
                found = seed_here(self.node(names[position]), intake=intake)
            finally:
                servings[position].close()
            return replace(found, reason=receiver.problem)

        return each(seed, range(count), num_threads=count)

    def files(self, name: str) -> dict[str, bytes]:
        return tree(self.root / name)
