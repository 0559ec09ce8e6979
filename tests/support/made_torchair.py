"""Made-up configuration objects in the two forms of TorchAir's, for tests without TorchAir.

As in the real ones, an option is an object with a property ``value``, some sections refuse unknown names, and
others take any. They have a few options only: a test says what it needs.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any


class Held:
    """An option; reads flags as "0" and "1", numbers as text."""

    def __init__(self, default: Any, allowed: tuple[Any, ...] = (), *, deaf: bool = False) -> None:
        self._value = default
        self._allowed = allowed
        self._deaf = deaf

    @property
    def value(self) -> Any:
        if self._value is None or isinstance(self._value, list | dict) or callable(self._value):
            return self._value
        return str(int(self._value)) if isinstance(self._value, bool) else str(self._value)

    @value.setter
    def value(self, value: Any) -> None:
        if self._allowed and value not in self._allowed:
            msg = f"{value!r} is not among {self._allowed!r}\nwith a long story after it"
            raise ValueError(msg)
        if not self._deaf:
            self._value = value


class Plain(Held):
    """An option that keeps flags as they are."""

    @property
    def value(self) -> Any:
        return self._value if isinstance(self._value, bool) else super().value

    @value.setter
    def value(self, value: Any) -> None:
        Held.value.fset(self, value)  # type: ignore[attr-defined]


class Strict:
    """A section that knows its options."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, **options: Any) -> None:
        self.__dict__.update(options)
        self.__dict__["_fixed_attrs"] = list(options)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._fixed_attrs:
            msg = f"has no option {name}"
            raise ValueError(msg)
        held = getattr(self, name)
        if isinstance(held, Held):
            held.value = value
        else:
            self.__dict__[name] = value

    def as_dict(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {}


class Loose:
    """A section that takes any name."""

    def __init__(self, **options: Any) -> None:
        self.__dict__.update(options)


class Flat(Strict):
    """As ``npugraph_ex.CompilerConfig``."""

    def __init__(self, **more: Any) -> None:
        known = {
            "mode": Plain("npugraph_ex", ("npugraph_ex",)),
            "force_eager": Plain(False, (True, False)),
            "use_graph_pool": None,
            "reuse_graph_pool_in_same_fx": Plain(True, (True, False)),
            "capture_limit": Plain(64),
            "clone_input": Plain(True, (True, False)),
            "inplace_pass": Plain(True, (True, False)),
            "post_grad_custom_pre_pass": Plain(None),
        }
        super().__init__(**{**known, **more})


class Nested(Strict):
    """As ``torchair.CompilerConfig``; keyword arguments replace options of ``debug.aclgraph``."""

    def __init__(self, **of_aclgraph: Any) -> None:
        aclgraph = {
            "clone_input": Held(True, (True, False)),
            "static_capture_size_limit": Held(64),
        }
        super().__init__(
            mode=Held("max-autotune", ("max-autotune", "reduce-overhead", "npugraph_ex")),
            debug=Strict(
                run_eagerly=Held(False, (True, False)),
                graph_dump=Strict(type=Held(None, ("txt", "pbtxt", "py"))),
                aclgraph=Strict(**{**aclgraph, **of_aclgraph}),
            ),
            dump_config=Strict(enable_dump=Held(False, (True, False)), dump_path=Held("./")),
            aclgraph_config=Loose(use_custom_pool=None),
        )

    def as_dict(self) -> tuple[dict[str, Any], dict[str, Any]]:
        dumps = self.dump_config
        path = {"aclgraph.dumpPath": f"{dumps.dump_path.value}/rank0"}
        return {"clone_input": json.dumps(1)}, path if dumps.enable_dump.value == "1" else {}
