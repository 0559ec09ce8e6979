"""Errors of the worker room: fields rather than only text, and picklable, because they cross Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any


class WorkerError(Exception):
    """Base of every error that `worker` raises.

    Keyword arguments become attributes and survive pickling, as does the message.
    """

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields
        self.__dict__.update(fields)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.fields)


def _rebuild(kind: type[WorkerError], message: str, fields: dict[str, Any]) -> WorkerError:
    error = kind.__new__(kind)
    WorkerError.__init__(error, message, **fields)
    return error


class NotYet(WorkerError):
    """A feature that is documented but not built yet was asked for."""

    def __init__(self, feature: str, *, instead: str) -> None:
        super().__init__(f"not yet built: {feature}; {instead}", feature=feature, instead=instead)


class PortInUse(WorkerError):
    """The port at which ranks were to meet is another process's by now."""


class BadFunction(WorkerError, ValueError):
    """The argument of `cache_compile` is no method of a module instance."""


class BadConfig(WorkerError, ValueError):
    """A value or a name that `CompilerConfig` does not know."""


class NoSuchCache(WorkerError, FileNotFoundError, ValueError):
    """`readable_cache` of a file that is not there; a ValueError too, as TorchAir's."""


class UnknownOption(BadConfig, AttributeError):
    """A name that `CompilerConfig` does not have was set or read (reading makes it an AttributeError)."""


class NoCounterpart(BadConfig):
    """Options of `CompilerConfig` that the installed TorchAir does not have, or makes nothing to keep of."""


class BadPass(WorkerError):
    """A pass of the user's failed, or left a graph that does not run."""


class BadRuntimeState(WorkerError, ValueError):
    """A declaration of runtime state that is no such thing, or contradicts another."""


class GearError(WorkerError, ValueError, AssertionError):
    """Dimension gears that are not allowed; an AssertionError too, as TorchAir's."""


class GraphBreak(WorkerError):
    """The function does not form one whole graph."""


class FunctionRaised(WorkerError):
    """The function raised an exception itself while it was traced; fields: function, reason, where."""


class RandomOp(WorkerError):
    """The graph holds an operator that draws random numbers."""


class BackwardNotSupported(WorkerError):
    """An input asks for gradients; cached functions are for inference."""


class NotPortable(WorkerError):
    """A guard, constant or object of the trace cannot be kept across processes."""

    @classmethod
    def of_global(cls, function: str, name: str) -> NotPortable:
        """The error for a function that sets a global."""
        msg = (
            f"{function} sets the global {name}, which a cached function must not; keep it as an attribute "
            "of the module, or return it"
        )
        return cls(msg, what=name)


class NeedsValues(NotPortable):
    """An offline build came to where a tensor's values are needed, and has none."""


class CompileFailed(WorkerError):
    """The vendor's compiler raised an error; fields: function, why."""


class TorchUnsupported(WorkerError):
    """This torch is not as the compile path needs it; fields: facts, torch, works."""


class NotCapturable(WorkerError):
    """A graph does something that a captured graph cannot repeat.

    Attributes:
        outputs: of the graph, where it ran to its end all the same; else None.
    """

    outputs: tuple[Any, ...] | None = None


class StateChanged(WorkerError):
    """A tensor of the module, or of a global, is not what it was when its conditions were checked.

    Or, ``while_running``, the result of an operator within the graph is not what it was in the trace.
    """

    def __init__(self, where: str, actual: object, *, while_running: bool = False) -> None:
        found = actual if isinstance(actual, str) else _in_brief(actual)
        super().__init__(
            f"{where} is not what this function was loaded for: it is {found} now",
            where=where,
            actual=found,
            while_running=while_running,
        )


def _in_brief(value: Any) -> str:
    """A tensor without its values."""
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return repr(value)
    return f"a tensor of {value.dtype}, sizes {list(value.shape)}, on {value.device}"


class DeviceUnavailable(WorkerError):
    """A device kind without its driver, its torch module, or a device for this rank."""


class ToolchainError(WorkerError):
    """A compiler or library that an engine needs is missing, or too old."""


class ArtifactCorrupt(WorkerError):
    """A file that is no artifact, or one whose bytes do not match its digest."""


class ArtifactMissing(ArtifactCorrupt):
    """A file that an artifact needs beside it is not there."""


class OtherFormat(ArtifactCorrupt):
    """An artifact that another version of warmrank wrote; its bytes match their digest."""


class CompileForbidden(WorkerError):
    """Something missed while compiling was forbidden."""


class WorkloadError(WorkerError):
    """An entrypoint that does not import or cannot be called, or returns no `Workload`; a missing script."""


class GroupError(WorkerError):
    """A process group that is unknown, or has no role."""


class ScriptFailed(WorkerError):
    """A script workload ended with an error."""
