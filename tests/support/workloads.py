"""Entrypoints: calls that differ by rank, by what was measured, by what ran before."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn

from tests.support.small_models import Cached, Plain
from tests.support.tiny_workload import Tiny
from warmrank.inference import cache_compile
from warmrank.worker.rank.workload import Call, RankContext, Workload
from warmrank.worker.results import Verification

ROWS = torch.arange(8.0).reshape(2, 4).clone()


def calling(
    model: nn.Module, *calls: tuple[Any, ...], check: Callable[[], Verification] | None = None
) -> Workload:
    """A workload that calls methods of a model, which are cached, with arguments: (name, argument, ...)."""
    functions = {name: cache_compile(getattr(model, name)) for name, *_ in calls}
    made = tuple(Call(function=functions[name], args=tuple(args)) for name, *args in calls)
    return Workload(model=model, calls=made, check=check)


def passed(max_error: float = 0.0, tolerance: float = 0.0, compared: str = "nothing") -> Verification:
    return Verification(ok=True, max_error=max_error, tolerance=tolerance, compared=compared)


def exactly(worst: torch.Tensor, compared: str) -> Verification:
    """A check whose differences have to be nothing."""
    far = float(worst.abs().max())
    return Verification(ok=far == 0, max_error=far, tolerance=0.0, compared=compared)


def plain(
    context: RankContext,
    *,
    factor: int = 2,
    dynamic: bool = True,
    cache_dir: str | None = None,
    on_recompile: str = "add",
) -> Workload:
    """Two functions, one of them called with two sizes, and a check against eager."""
    model = Plain().requires_grad_(requires_grad=False)
    model.factor = factor
    affine = cache_compile(model.affine, dynamic=dynamic, cache_dir=cache_dir, on_recompile=on_recompile)
    scaled = cache_compile(model.scaled, dynamic=dynamic, cache_dir=cache_dir)
    large = torch.ones(6, 4)

    def check() -> Verification:
        return exactly(affine(ROWS) - model.affine(ROWS), "affine with eager")

    calls = (
        Call(function=affine, args=(ROWS,)),
        Call(function=scaled, args=(ROWS,), kwargs={"negate": True}),
        Call(function=affine, args=(large,)),
    )
    return Workload(model=model, calls=calls, check=check)


def sized(context: RankContext, *, writes: bool = False) -> Workload:
    """One call of two rows; the check asks twice for five and for eight, and once for seven."""
    model = Cached() if writes else Plain()
    model.requires_grad_(requires_grad=False)
    method = model.accumulate if isinstance(model, Cached) else model.affine
    function = cache_compile(method)

    def check() -> Verification:
        for rows in (5, 8, 7, 5, 8):
            function(torch.ones(rows, 4))
        return passed()

    return Workload(model=model, calls=(Call(function=function, args=(ROWS,)),), check=check)


def wrong(context: RankContext) -> int:
    return 3


def by_rank(context: RankContext, *, num_kinds: int) -> Workload:
    """Ranks burn in one of ``num_kinds`` factors, in turn."""
    model = Plain().requires_grad_(requires_grad=False)
    model.factor = 2 + context.rank % num_kinds
    return calling(model, ("affine", ROWS))


class Picky(torch.nn.Module):
    """Has a graph break in one function where it is told so."""

    def __init__(self, *, breaks: bool) -> None:
        super().__init__()
        self.breaks = breaks

    def fragile(self, x: torch.Tensor) -> torch.Tensor:
        if self.breaks:
            torch._dynamo.graph_break()
        return x * 2

    def sound(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def picky(context: RankContext, *, broken: list[int]) -> Workload:
    """One function that does not compile on the ranks named, and one that does everywhere."""
    return calling(Picky(breaks=context.rank in broken), ("fragile", ROWS), ("sound", ROWS))


MEASURED: dict[int, int] = {}
"""What each rank measures: tests write it, as memory that is free would decide it."""


def workload(context: RankContext) -> Workload:
    model = Tiny(None).requires_grad_(requires_grad=False)
    x = torch.ones(3, 4)
    calls = (Call(function=model.cached_twice, args=(x,)), Call(function=model.cached_increment, args=(x,)))
    return Workload(model=model, calls=calls, runtime_state={"kv_cache_blocks": MEASURED[context.rank]})


TOKEN = torch.ones(1, 4)
PROMPT = torch.ones(3, 4)


class Lazy(nn.Module):
    """Makes a buffer when it is first used."""

    def __init__(self) -> None:
        super().__init__()
        self.scale: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.scale is None:
            self.scale = x.new_full((4,), 2.0)
        return x * self.scale


class Counting(nn.Module):
    """Counts its calls, up to a limit."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit, self.num_calls = limit, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.num_calls < self.limit:
            self.num_calls += 1
        return x * self.num_calls


class Marking(nn.Module):
    """Makes a mark for each call, up to a limit; texts are no symbols of a trace, as integers are."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit, self.marks = limit, ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.marks) < self.limit:
            self.marks += "."
        return x * len(self.marks)


class Growing(nn.Module):
    """Keeps what it has seen, as a dynamic KV cache does."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: torch.Tensor | None = None

    def prefill(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = x * 2
        return x + 1

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = x if self.seen is None else torch.cat([self.seen, x])
        return self.seen.sum(0)


class Within(nn.Module):
    """Calls a cached function that is none of the workload's calls."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = cache_compile(self.doubled)

    def doubled(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def tripled(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3


class StaticDecoder(nn.Module):
    """A decoder of transformers with a cache of theirs."""

    def __init__(self, cache: str) -> None:
        from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

        super().__init__()
        config = LlamaConfig(
            vocab_size=16,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            max_position_embeddings=16,
        )
        self.model = LlamaForCausalLM(config).eval().requires_grad_(requires_grad=False)
        self.cache = StaticCache(config, max_cache_len=16) if cache == "static" else DynamicCache()

    def prefill(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self._logits(tokens, positions)

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self._logits(tokens, positions)

    def _logits(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        found = self.model(tokens, past_key_values=self.cache, cache_position=positions, use_cache=True)
        logits: torch.Tensor = found.logits
        return logits


def counting(context: RankContext, *, limit: int) -> Workload:
    """One call of a function that counts its calls."""
    return calling(Counting(limit), ("forward", TOKEN))


def marking(context: RankContext, *, limit: int) -> Workload:
    """One call of a function that makes a mark for each call."""
    return calling(Marking(limit), ("forward", TOKEN))


def lazy(context: RankContext) -> Workload:
    """One call of a function that makes a buffer."""
    return calling(Lazy(), ("forward", TOKEN))


def growing(context: RankContext) -> Workload:
    """A prompt, and a token after it."""
    return calling(Growing(), ("prefill", PROMPT), ("decode", TOKEN))


def decoder(context: RankContext, *, cache: str) -> Workload:
    """A prompt, and a token after it, of transformers' Llama."""
    torch.manual_seed(0)
    prompt = torch.tensor([[1, 2, 3]]), torch.arange(3)
    token = torch.tensor([[4]]), torch.tensor([3])
    return calling(StaticDecoder(cache), ("prefill", *prompt), ("decode", *token))


def within(context: RankContext) -> Workload:
    """A check that needs a function, and a state, that no call has."""
    model, counts = Within(), Counting(1)
    function = cache_compile(counts.forward)

    def check() -> Verification:
        far = model.inner(TOKEN) - 2
        function(TOKEN.double())
        return exactly(far, "twice one with two")

    return Workload(model=model, calls=(Call(function=function, args=(TOKEN,)),), check=check)


class Grown(Growing):
    """As `Growing`, and cannot even be traced before a prompt came."""

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        assert self.seen is not None
        self.seen = torch.cat([self.seen, x])
        return self.seen.sum(0)


def grown(context: RankContext) -> Workload:
    """A prompt, and two tokens, whose function raises without a prompt."""
    return calling(Grown(), ("prefill", PROMPT), ("decode", TOKEN), ("decode", TOKEN))


def elsewhere(context: RankContext, *, place: str) -> Workload:
    """A check that needs a function which no module keeps as an attribute."""
    model = Within()
    bucket = {"bucket": cache_compile(model.tripled)}

    def made_in_a_thread() -> Any:
        with ThreadPoolExecutor() as pool:
            return pool.submit(cache_compile, model.tripled).result()

    def check() -> Verification:
        function = {
            "dict": lambda: bucket["bucket"],
            "check": lambda: cache_compile(model.tripled),
            "thread": made_in_a_thread,
        }[place]()
        return exactly(function(TOKEN) - 3, "three times one with three")

    return Workload(model=model, calls=(Call(function=model.inner, args=(TOKEN,)),), check=check)


def outside(context: RankContext, *, cache_dir: str) -> Workload:
    """A check that needs a function with a cache directory of its own."""
    model = Within()

    def check() -> Verification:
        cache_compile(model.tripled, cache_dir=cache_dir)(TOKEN)
        return passed()

    return Workload(model=model, calls=(Call(function=model.inner, args=(TOKEN,)),), check=check)


def claims(context: RankContext, *, max_error: str) -> Workload:
    """A check that says that all is well, whatever it saw."""
    model = Within()

    calls = (Call(function=model.inner, args=(TOKEN,)),)
    return Workload(model=model, calls=calls, check=lambda: passed(float(max_error), 0.5))
