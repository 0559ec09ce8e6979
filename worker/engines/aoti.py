"""Engine ``aoti``: the graph compiled ahead of time by Inductor, for mode max-autotune on cpu and cuda.

Sections::

    graph.py, graph.code, constants   the whole graph as engine ``graph`` writes it: to read, and to replay
    aoti                              JSON: ``traced``, inputs and conditions as text, for audits; ``device``,
                                      their kind; ``classes`` of the inputs; ``file``, the library's, empty
                                      where there is none; positions of inputs: ``tensors`` and ``numbers``
                                      that the library takes (these as sizes), ``written`` that it writes to,
                                      ``tail_inputs``; of ``constants``
    tail.py, tail.code, tail.constants   the tail (`aoti_compile`), in that form; only where there is one

File: ``ge_cache_<16 hex of its SHA-256>.pt2``: a zip in torch's layout, without dates::

    graph/archive_format                      pt2
    graph/data/aotinductor/model/graph.so     the library, not compressed
    graph/data/aotinductor/model/graph.json   operators that it calls by name; where there are any

A result shares memory with exactly what it shares in eager: Inductor may return one buffer as two results, so
the first call finds results that share memory with each other or an input, and those are copied from then on.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.devices import forbid_writes, picker
from warmrank.worker.engines import Built, Site
from warmrank.worker.engines.graph import SECTIONS, GraphEngine, unpack_constants
from warmrank.worker.engines.overlap import OverlapCheck
from warmrank.worker.errors import ArtifactCorrupt, ArtifactMissing, BadConfig, NotPortable
from warmrank.worker.runtime.artifact import STATE

if TYPE_CHECKING:
    from warmrank.worker.engines import Files, Graph, Groups, Sections
    from warmrank.worker.runtime.artifact import GraphFacts
    from warmrank.worker.torch_private.lowering import LoweredGraph

Run = Callable[[list[torch.Tensor]], list[torch.Tensor]]

_log = logging.getLogger("torchair")
_DIRECTORY = "graph/data/aotinductor/model/"
_LIBRARY_FILES = ("graph.so", "graph.json")
_SECTION = "aoti"
_TAIL = ("tail.py", "tail.code", "tail.constants")
_LARGEST_NUMBER = 2**31 - 1  # whose square fits into a library's integers
# Packages that this process compiled, by their names: of an abandoned cache there is no file.
_compiled: dict[str, bytes] = {}


def pack(library: Mapping[str, bytes]) -> bytes:
    """The package of a library, given as its files by name."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        files = [(f"{_DIRECTORY}{name}", library[name]) for name in _LIBRARY_FILES if name in library]
        for name, data in (("graph/archive_format", b"pt2"), *files):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o600 << 16
            archive.writestr(entry, data)
    return stream.getvalue()


def unpack(package: bytes, name: str) -> dict[str, bytes]:
    """The library in a package; raises `ArtifactCorrupt` if it is none."""
    try:
        with zipfile.ZipFile(io.BytesIO(package)) as archive:
            known = {path.removeprefix(_DIRECTORY): path for path in archive.namelist()}
            library = {file: archive.read(known[file]) for file in _LIBRARY_FILES if file in known}
    except zipfile.BadZipFile as error:
        msg = f"{name} is no package of compiled kernels: {error}"
        raise ArtifactCorrupt(msg, where=name, why=str(error)) from error
    if "graph.so" not in library:
        msg = f"{name} is no package of compiled kernels: it holds no graph.so"
        raise ArtifactCorrupt(msg, where=name, why="it holds no graph.so")
    return library


class CompiledGraph:
    """Calls the library and the tail.

    A graph that writes to inputs was compiled for inputs that do not overlap, and that may be written to;
    where they do, or may not, it is replayed. So it is for large numbers: a library computes in 64 bits, and
    Python in as many as it takes.

    Args:
        call: how to call both, as section ``aoti`` has it.
        open: opens the library on a device; None where there is none.
        constants: tensors that the library takes after its inputs.
        tail: makes the results of its inputs and the library's results; None where these are the results.
        replay: the graph, operator by operator.
    """

    def __init__(
        self,
        call: Mapping[str, Any],
        *,
        open: Callable[[torch.device], Run] | None,  # noqa: A002 - of a library
        constants: Sequence[torch.Tensor],
        tail: Graph | None,
        replay: Graph,
    ) -> None:
        written, classes = call["written"], call["classes"]
        self._open, self._tail, self._replay = open, tail, replay
        self._run: Run | None = None
        self._take = _taker(call, constants)
        self._numbers = picker(call["numbers"]) if call["numbers"] else None
        self._tail_inputs = picker(call["tail_inputs"])
        self._written = picker(written)
        self._copied: frozenset[int] | None = None  # None until the first call has looked
        self._warned = False
        self._overlap: OverlapCheck | None = None
        if written:
            read = [index for index in call["tensors"] if index not in written]
            fixed = [index for index in read if classes[index] == STATE]
            others = [index for index in read if classes[index] != STATE]
            self._overlap = OverlapCheck(written, fixed, others)
        if open is not None and call["device"] == "cpu":
            self._run = open(torch.device("cpu"))  # a fault shows at load, not at the first call

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Results of the graph."""
        made: Sequence[torch.Tensor | None] = ()
        if self._open is not None:
            if self._numbers is not None and max(map(abs, self._numbers(inputs))) > _LARGEST_NUMBER:
                return self._replay(*inputs)
            if self._overlap is not None:
                if forbid_writes(self._written(inputs)):
                    return self._replay(*inputs)  # raises as eager does
                if self._overlap(inputs):
                    self._warn(
                        "inputs of a graph that writes to its inputs share memory, which compiled kernels "
                        "are not made for; the graph is replayed operator by operator whenever they do"
                    )
                    return self._replay(*inputs)
            taken = self._take(inputs)
            if self._run is None:
                on = (item.device for item in taken if item.device.type != "cpu")
                self._run = self._open(next(on, torch.device("cpu")))
            try:
                made = self._run(taken)
            except RuntimeError as error:
                return self._after(error, inputs)
            if self._copied is None or self._copied:
                made = self._own(made, taken)
        return tuple(made) if self._tail is None else self._tail(*self._tail_inputs(inputs), *made)

    def _warn(self, text: str) -> None:
        """Warn, once, that the graph is replayed."""
        if not self._warned:
            self._warned = True
            _log.warning("%s", text)

    def _after(self, error: RuntimeError, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The results of a call that the library gave up: those of the replay, which raises as eager does.

        Raises:
            StateChanged: the result of an operator is not as in the trace.
            RuntimeError: the library may have written to its inputs already, so nothing can be replayed.
        """
        from warmrank.worker.torch_private.libraries import changed_result

        changed = changed_result(error)
        if changed or self._overlap is not None:
            raise changed or error from None
        results = self._replay(*inputs)
        reason = str(error).partition("\n")[0]
        self._warn(
            f"compiled kernels fail where the graph itself does not ({reason}); it is replayed operator by "
            "operator whenever they do"
        )
        return results

    def _own(
        self, made: Sequence[torch.Tensor | None], taken: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor | None]:
        """The results, copied where they lie in the memory of an input or of an earlier result.

        A result that an operator leaves out is None.
        """
        copied = self._copied
        if copied is None:
            seen = {value.untyped_storage().data_ptr() for value in taken if value.numel()}
            found = set()
            results = [(index, value) for index, value in enumerate(made) if value is not None]
            for index, value in results:
                address = value.untyped_storage().data_ptr()
                if value.numel() and address in seen:
                    found.add(index)
                seen.add(address)
            copied = frozenset(found)
            if all(value.numel() for _, value in results):  # an empty result does not show what it shares
                self._copied = copied
        return [
            value.clone() if value is not None and index in copied else value
            for index, value in enumerate(made)
        ]


def _taker(
    call: Mapping[str, Any], constants: Sequence[torch.Tensor]
) -> Callable[[Sequence[Any]], list[torch.Tensor]]:
    """Function that makes the library's inputs of the graph's, prepared for this graph."""
    if call["tensors"] == [*range(len(call["classes"]))] and not constants:
        return list
    pick, sizes = picker(call["tensors"]), picker(call["numbers"])
    if not call["numbers"]:
        return lambda inputs: [*pick(inputs), *constants]
    carrier = torch.empty(1, dtype=torch.uint8)
    return lambda inputs: [*pick(inputs), *map(carrier.expand, sizes(inputs)), *constants]


class AotiEngine:
    """Compiles with AOTInductor; loads without it."""

    name = "aoti"
    version = "4"
    captured = False
    captures_itself = False

    def check(self, device_kind: str) -> None:
        """See `Engine.check`."""
        from warmrank.worker.engines import toolchain
        from warmrank.worker.torch_private import facts as torch_facts

        if device_kind not in ("cpu", "cuda"):
            msg = (
                f"engine aoti compiles for cpu and cuda; this module lies on {device_kind}. Use engine "
                "torchair, or mode reduce-overhead"
            )
            raise BadConfig(msg, parameter="engine", device_kind=device_kind)
        toolchain.check_cpp_compiler()
        torch_facts.require("inductor")
        if device_kind == "cuda":
            toolchain.check_cuda()

    def compile(
        self, lowered: LoweredGraph, facts: GraphFacts, *, site: Site | None = None, kernels: bool = True
    ) -> Built:
        """See `Engine.compile`; raises `NotPortable` where a library cannot return what eager does."""
        from warmrank.worker.engines.aoti_compile import compile_parts, refuse_inputs
        from warmrank.worker.torch_private.symbols import described

        if facts.data_dependent:
            msg = (
                f"{facts.data_dependent}'s result depends on data, which mode max-autotune does "
                "not support; use mode reduce-overhead, or move it out of the cached function"
            )
            raise NotPortable(msg, what=facts.data_dependent)
        refuse_inputs(lowered, facts)
        sections = {**GraphEngine().compile(lowered, facts, site=site).sections}
        call: dict[str, Any] = {"traced": described(lowered.graph)}  # before Inductor adds conditions
        files: dict[str, bytes] = {}
        if kernels:
            digest = hashlib.sha256(sections["graph.py"] + sections["constants"] + json.dumps(call).encode())
            library, tail, parts = compile_parts(lowered, facts, digest.hexdigest()[:32])
            if library:
                package = pack(library)
                files = {f"ge_cache_{hashlib.sha256(package).hexdigest()[:16]}.pt2": package}
                _compiled.update(files)
            sections |= dict(zip(_TAIL, (tail[name] for name in SECTIONS), strict=True)) if tail else {}
            values = (node.meta.get("val") for node in lowered.graph.graph.nodes if node.op == "placeholder")
            devices = {value.device.type for value in values if isinstance(value, torch.Tensor)}
            call |= {
                **parts,
                "device": min(devices - {"cpu"}, default="cpu"),
                "classes": list(facts.input_classes),
                "file": next(iter(files), ""),
            }
        sections[_SECTION] = json.dumps(call, sort_keys=True, separators=(",", ":")).encode()
        return Built(sections=sections, files=files)

    def load(self, sections: Sections, files: Files, groups: Groups, *, site: Site | None = None) -> Graph:
        """See `Engine.load`.

        Raises:
            ArtifactMissing: the kernels are not there.
            ArtifactCorrupt: they cannot be opened here.
        """
        del site
        from warmrank.worker.torch_private.libraries import open_library

        call: dict[str, Any] = json.loads(sections[_SECTION])
        library = tail = None
        if name := call["file"]:
            try:
                package = files[name].read_bytes() if name in files else _compiled[name]
            except (KeyError, OSError) as error:  # it was verified, and may be gone since
                msg = f"{name} is missing, the artifact's kernels"
                raise ArtifactMissing(msg, where=name, why="it is missing") from error
            library = unpack(package, name)
        if _TAIL[0] in sections:
            of_tail = {name: sections[own] for name, own in zip(SECTIONS, _TAIL, strict=True)}
            tail = GraphEngine().load(of_tail, {}, groups)

        whole = cache(lambda: GraphEngine().load({name: sections[name] for name in SECTIONS}, {}, groups))

        def replay(*inputs: Any) -> tuple[Any, ...]:
            return whole()(*inputs)

        constants = unpack_constants(sections["constants"])
        return CompiledGraph(
            call,
            open=None if library is None else partial(open_library, library),
            constants=[constants[index] for index in call["constants"]],
            tail=tail,
            replay=replay,
        )
