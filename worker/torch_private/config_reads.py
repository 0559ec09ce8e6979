"""Torch's settings, read by traced code as values.

Since torch 2.14 Dynamo traces how a module of settings looks one up, through objects that no later process
has. Here such a module is a module as any other, as it was until then: a setting is guarded by its value.

Relies on: ``VariableBuilder._wrap`` sees every object that has a source.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from warmrank.worker.torch_private.patching import wrapped

FACTS = {
    "torch._dynamo.guards:GuardBuilder": "MODULE_MATCH",
    "torch._dynamo.side_effects:SideEffects": "track_object_existing",
    "torch._dynamo.variables": "PythonModuleVariable(value)",
    "torch._dynamo.variables.builder:VariableBuilder": "_wrap install_guards source tx",
    "torch.utils._config_module": "ConfigModule",
}


@contextlib.contextmanager
def settings_read_by_value() -> Iterator[None]:
    """Within it, Dynamo reads modules of settings as it reads other modules."""
    from torch._dynamo.guards import GuardBuilder
    from torch._dynamo.variables import PythonModuleVariable
    from torch._dynamo.variables.builder import VariableBuilder
    from torch.utils._config_module import ConfigModule

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def _wrap(builder: Any, value: Any) -> Any:
            if not isinstance(value, ConfigModule):
                return original(builder, value)
            builder.install_guards(GuardBuilder.MODULE_MATCH)
            variable = PythonModuleVariable(value, source=builder.source)
            builder.tx.output.side_effects.track_object_existing(value, variable)
            return variable

        return _wrap

    with wrapped(VariableBuilder, "_wrap", wrap):
        yield
