"""Engine ``torchair``: the vendor's compiler for Ascend NPUs, under this package's conditions and store.

Sections::

    torchair.json   {"parameters": [[name, is a parameter], ...], "vendor": "torchair" or "npugraph_ex",
                     "version": of TorchAir's cache file,
                     "constants": [[name, device type], ...] where there are some}
    torchair.py     the code that TorchAir generated, as `worker.engines.torchair_code` keeps it
    torchair.txt    what TorchAir says of graph, inputs and options, for people

    constants       tensor constants of the graph, as engine ``graph`` keeps them; only where there are some

Nothing is pickled: TorchAir's own file, which is a pickle, exists in a private directory only
(`worker.engines.torchair_cache`, `torchair_load`).

Loading imports what TorchAir imports: Dynamo, Inductor and sympy among it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warmrank.worker.engines import Built, Site
from warmrank.worker.engines.torchair_code import roles_in
from warmrank.worker.errors import ArtifactCorrupt, BadConfig, NotPortable

if TYPE_CHECKING:
    from warmrank.worker.engines import Graph
    from warmrank.worker.engines.torchair_constants import Constants
    from warmrank.worker.graph_facts import GraphFacts
    from warmrank.worker.torch_private.lowering import CapturedCall, LoweredGraph


class TorchairEngine:
    """Hands compiling and loading to TorchAir."""

    name = "torchair"
    version = "1"
    captured = False
    captures_itself = True

    def check(self, device_kind: str) -> None:
        """See `worker.engines.Engine.check`.

        Raises:
            BadConfig: the module lies on another kind of device.
            DeviceUnavailable: torch_npu or TorchAir does not import.
        """
        from warmrank.worker.devices import backend_for
        from warmrank.worker.torch_private import facts as torch_facts

        if device_kind != "npu":
            msg = f"engine torchair compiles for device kind npu; this module lies on {device_kind}"
            raise BadConfig(msg, parameter="engine", device_kind=device_kind)
        backend_for(device_kind)
        torch_facts.require("torchair")

    def compile(
        self, lowered: LoweredGraph, facts: GraphFacts, *, keep_compiled: bool, site: Site | None = None
    ) -> Built:
        """See `worker.engines.Engine.compile`.

        Raises:
            NotPortable: TorchAir does not cache the function, or its cache would give other results.
        """
        from warmrank.worker.engines.torchair_cache import compiled
        from warmrank.worker.torch_private.aot_facts import left_to_wrappers

        del keep_compiled
        call = lowered.captured
        assert site is not None and call is not None  # noqa: S101, PT018 - TorchAir takes methods
        if facts.random:
            msg = f"{facts.random} draws random numbers, which TorchAir does not cache; use engine graph"
            raise NotPortable(msg, what=facts.random)
        if facts.data_dependent and site.config.mode != "max-autotune":
            msg = (
                f"{facts.data_dependent}'s result depends on data, so TorchAir cannot capture "
                "it; use engine graph, or move it out of the cached function"
            )
            raise NotPortable(msg, what=facts.data_dependent)
        _refuse_marks(site, call, facts)
        if facts.aliased_outputs:
            msg = (
                f"output {facts.aliased_outputs[0]} of {site.method.__qualname__} is a view of an input, and "
                "TorchAir's cache returns a view of its own buffer instead; return a copy (.clone()), or use "
                "engine graph"
            )
            raise NotPortable(msg, what=f"output {facts.aliased_outputs[0]}")
        groups = _groups(lowered)
        written = compiled(site, call, groups)
        if left := left_to_wrappers(call.context):
            msg = f"{site.method.__qualname__}: {left}, which TorchAir's cache leaves out; use engine graph"
            raise NotPortable(msg, what=left)
        if unbound := set(groups) - roles_in(written.code):
            msg = (
                f"TorchAir writes process groups ({', '.join(sorted(unbound))}) into its code in a way that "
                f"cannot be bound to another rank's, in mode {site.config.mode}; use mode reduce-overhead"
            )
            raise NotPortable(msg, what="process groups")
        about: dict[str, Any] = {
            "parameters": written.parameters,
            "vendor": written.vendor,
            "version": written.version,
        }
        constants: dict[str, bytes] = {}
        if written.constants is not None:
            about["constants"] = written.constants.names
            constants["constants"] = written.constants.section
        return Built(
            sections={
                **constants,
                "torchair.json": json.dumps(about, sort_keys=True, separators=(",", ":")).encode(),
                "torchair.py": written.code.encode(),
                "torchair.txt": written.signature.encode(),
            }
        )

    def outline(
        self, lowered: LoweredGraph, facts: GraphFacts, *, site: Site | None = None
    ) -> Mapping[str, bytes]:
        """See `worker.engines.Engine.outline`; GE makes kernels of TorchAir's code later."""
        return self.compile(lowered, facts, keep_compiled=False, site=site).sections

    def load(
        self,
        sections: Mapping[str, bytes],
        files: Mapping[str, Path],
        groups: Mapping[str, str],
        *,
        site: Site | None = None,
    ) -> Graph:
        """See `worker.engines.Engine.load`.

        Raises:
            ArtifactCorrupt: TorchAir does not load it.
        """
        from warmrank.worker.engines.torchair_cache import Written
        from warmrank.worker.engines.torchair_load import loaded

        del files
        assert site is not None  # noqa: S101 - TorchAir takes methods
        try:
            about: dict[str, Any] = json.loads(sections["torchair.json"])
            written = Written(
                vendor=str(about["vendor"]),
                version=str(about["version"]),
                signature=sections["torchair.txt"].decode(),
                code=sections["torchair.py"].decode(),
                parameters=tuple((str(name), bool(flag)) for name, flag in about["parameters"]),
                constants=_constants(about, sections),
            )
        except (LookupError, TypeError, ValueError) as error:
            msg = f"what is kept of TorchAir's file cannot be read ({error!r}); it is compiled again"
            raise ArtifactCorrupt(msg, where=site.method.__qualname__, why=repr(error)) from error
        return loaded(written, site, groups)


def _refuse_marks(site: Site, call: CapturedCall, facts: GraphFacts) -> None:
    """Refuse arguments that are marked static where parameters are frozen: a later process may mark others.

    Raises:
        NotPortable: names the argument.
    """
    config = site.config
    if not (config.experimental_config.frozen_parameter or config.npugraphex_config.frozen_parameter):
        return
    for index, value in enumerate(call.example_inputs):
        if index not in facts.module_inputs and getattr(value, "_dynamo_static_input_type", None):
            name = facts.input_names[index]
            msg = (
                f"argument {name} of {site.method.__qualname__} is marked by mark_static_address, which "
                "TorchAir freezes with frozen_parameter for every later process too; use one of the two"
            )
            raise NotPortable(msg, what=name)


def _constants(about: Mapping[str, Any], sections: Mapping[str, bytes]) -> Constants | None:
    from warmrank.worker.engines.torchair_constants import Constants

    if "constants" not in about:
        return None
    names = tuple((name, kind) for name, kind in about["constants"])
    return Constants(names=names, section=sections["constants"])


def _groups(lowered: LoweredGraph) -> dict[str, str]:
    """This process's names of the process groups that the graph uses, by role."""
    from warmrank.worker.groups import role_of
    from warmrank.worker.torch_private.operators import named_argument

    names = {
        named_argument(node, "group_name") for node in lowered.graph.graph.nodes if "c10d" in str(node.target)
    }
    return {role_of(str(name)): str(name) for name in names if name is not None}
