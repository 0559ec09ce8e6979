"""Facts of Inductor that engine ``aoti`` rests on, and compiling again; no C++ compiler runs."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.tracing import bound, compiles_ahead
from warmrank.worker.compile.analysis import analyse
from warmrank.worker.engines.aoti import AotiEngine, _compile_again
from warmrank.worker.errors import NotYet
from warmrank.worker.torch_private import inductor
from warmrank.worker.torch_private.tracing import trace

X = torch.arange(12.0).reshape(3, 4)


class Steps(nn.Module):
    """Calls whose conditions on sizes Inductor adds to."""

    def numbered(self, x: torch.Tensor, n: int) -> Any:
        return x * n + 1

    def written(self, cache: torch.Tensor, x: torch.Tensor) -> Any:
        cache.add_(x)
        return cache.sum(1)

    def twice(self, x: torch.Tensor, flags: torch.Tensor) -> Any:
        return (x + flags)[0], x.shape[0], flags.shape[0]

    def cached(self, cache: torch.Tensor, x: torch.Tensor, pos: int) -> Any:
        cache.narrow(0, pos, 1).copy_(x)
        return cache[: pos + 1].sum(0)


CALLS: dict[str, tuple[Any, ...]] = {
    "numbered": (X, 5),
    "written": (torch.ones(3, 4), X),
    "cached": (torch.zeros(6, 4), X[:1], 3),
    "twice": (X, torch.ones(3, 1)),
}


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Source of the kernels that Inductor would hand to the C++ compiler."""
    from torch._inductor import config
    from torch._inductor.codecache import AotCodeCompiler

    found: list[str] = []

    def compile_nothing(
        graph: Any, wrapper_code: str, kernel_code: str, *args: Any, **kwargs: Any
    ) -> list[str]:
        found.append(wrapper_code + kernel_code)
        made = Path(config.aot_inductor.output_path) / "graph.wrapper.so"
        made.write_bytes(b"library")
        return [str(made)]

    monkeypatch.setattr(AotCodeCompiler, "compile", compile_nothing)
    return found


def built(name: str) -> dict[str, bytes]:
    """Sections of one call's artifact."""

    def build(lowered: Any) -> Any:
        return AotiEngine().compile(lowered, analyse(lowered, "self"), keep_compiled=False)

    with torch.no_grad():
        _, made = trace(
            bound(getattr(Steps(), name)), CALLS[name], {}, dynamic=True, decompositions={}, build=build
        )
    return dict(made.sections)


def call_of(sections: Mapping[str, bytes]) -> dict[str, Any]:
    call: dict[str, Any] = json.loads(sections["aoti"])
    return call


@compiles_ahead
@pytest.mark.parametrize("name", list(CALLS))
def test_compiling_again_comes_to_the_same_conditions(name, sources, caplog):
    sections = built(name)
    assert call_of(sections)["added"] or name == "twice"
    with caplog.at_level(logging.WARNING, logger="torchair"):
        assert _compile_again(sections, call_of(sections)) == {"graph.so": b"library"}
    assert [record.message for record in caplog.records if record.name == "torchair"] == []
    assert len(sources) == 2


@compiles_ahead
@pytest.mark.parametrize(
    "change",
    [lambda call: call["added"].pop(), lambda call: call["tensors"].reverse()],
    ids=["a condition that does not stand in the artifact", "inputs in another order"],
)
def test_compiling_again_to_something_else_falls_back_with_a_warning(change, sources, caplog):
    sections = built("written")
    call = call_of(sections)
    change(call)
    with caplog.at_level(logging.WARNING, logger="torchair"):
        assert _compile_again(sections, call) is None
    assert "the kernels came out otherwise than the artifact says, so the graph is replayed" in caplog.text
    assert sources


def test_setting_that_is_unknown_is_an_error_unless_it_changes_no_results() -> None:
    known = ["cpp.threads"]
    optional = {"aot_inductor.enable_line_tables": False, "aot_inductor.precompile_headers": True}
    assert inductor.known_settings({"cpp.threads": 3, **optional}, known) == {"cpp.threads": 3}
    with pytest.raises(NotYet, match=r"has no cpp\.march"):
        inductor.known_settings({"cpp.threads": 3, "cpp.march": "x86-64-v3"}, known)


def test_variables_are_set_by_one_compile_at_a_time_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "mine")
    seen: list[str] = []

    def other() -> None:
        with inductor._environment({"TORCHINDUCTOR_CACHE_DIR": "theirs"}):
            seen.append(os.environ["TORCHINDUCTOR_CACHE_DIR"])

    with inductor._environment({"TORCHINDUCTOR_CACHE_DIR": "first"}):
        thread = threading.Thread(target=other)
        thread.start()
        assert inductor._ENVIRONMENT.locked()
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "first"
    thread.join()
    assert (seen, os.environ["TORCHINDUCTOR_CACHE_DIR"]) == (["theirs"], "mine")
