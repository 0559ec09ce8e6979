"""The Python objects that a traced frame will write to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from warmrank.worker.torch_private.lowering import source_name
from warmrank.worker.torch_private.patching import wrapped
from warmrank.worker.values import Value

FACTS = {
    "torch._dynamo.side_effects:SideEffects": (
        "codegen_update_mutated _get_modified_vars store_attr_mutations"
    ),
    "torch._dynamo.variables.base": "AttributeMutationNew ValueMutationNew",
}


class TracedWrite(Value):
    """A Python object that the frame writes to, and which of its attributes; none for a container."""

    source: str
    attribute: str


@contextlib.contextmanager
def noted_writes() -> Iterator[dict[TracedWrite, None]]:
    """Fills the mapping it yields, while a trace runs, with the writes of the frame, in their order."""
    from torch._dynamo.side_effects import SideEffects
    from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew

    noted: dict[TracedWrite, None] = {}

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def codegen_update_mutated(effects: Any, *args: Any, **kwargs: Any) -> None:
            for variable in effects._get_modified_vars():
                if isinstance(variable.mutation_type, AttributeMutationNew | ValueMutationNew):
                    continue
                local = getattr(variable, "local_name", None)
                source = f"L[{local!r}]"
                if variable.source is not None:
                    try:
                        source = source_name(variable.source)
                    except NotImplementedError:
                        continue  # made by the tracer itself, so no condition hangs on it
                names = effects.store_attr_mutations.get(variable, {}) if local is None else {}
                noted.update((TracedWrite(source=source, attribute=name), None) for name in names or ("",))
            original(effects, *args, **kwargs)

        return codegen_update_mutated

    with wrapped(SideEffects, "codegen_update_mutated", wrap):
        yield noted
