"""``config.debug``: running without a graph, what a graph does with memory, and dumps of it."""

from __future__ import annotations

from warmrank.worker.configs.effects import ASCEND_FLAT, CAPTURE, captured_by_torchair
from warmrank.worker.configs.options import Choice, Directory, Flag, Function, IntRange
from warmrank.worker.configs.section import Part, Section


class GraphDump(Section, at="debug.graph_dump"):
    """A dump of the graph when it is compiled: as it was traced, and as the user's passes left it."""

    type = Choice[str | None](None, ("txt", "pbtxt", "py"), of_ascend=("pbtxt",))
    """Form of the dump: FX's table, the Ascend engine's, or Python; None dumps nothing."""

    path = Directory(None)
    """Directory of the dump; None means the working directory."""


class DataDump(Section, at="debug.data_dump"):
    """A dump of every operator's results on every call; the graph runs eagerly meanwhile."""

    type = Choice[str | None](None, ("npy",))
    """Form of the dump; None dumps nothing."""

    path = Directory(None)
    """Directory of the dump; None means the working directory."""

    filter = Function(None)
    """Which operators to dump: gets a node of the FX graph, returns it or None; None means all."""


class FxSummary(Section, at="debug.fx_summary"):
    """A table of the graph's operators in the working directory, when the graph is compiled."""

    type = Choice[str | None](None, ("csv",))
    """Form of the table; None writes none."""

    skip_compile = Flag(True)
    """With a table, run the graph eagerly, without kernels or capture."""


_IN_PLACE = captured_by_torchair(
    "a graph keeps in-place operators as they were written, so none is turned back"
)


class AclGraphDebug(Section, at="debug.aclgraph", effect=CAPTURE):
    """How graphs are captured and what they do with their inputs, outputs and memory."""

    disable_reinplace_inplaceable_ops_pass = Flag(False, effect=_IN_PLACE)
    """Do not turn operators back into their in-place forms."""

    disable_reinplace_input_mutated_ops_pass = Flag(False, effect=_IN_PLACE)
    """Do not turn operators that end in a copy into an input back into in-place forms."""

    disable_mempool_reuse_in_same_fx = Flag(False)
    """Memory reuse, mode two: True gives each captured shape of one graph a pool of its own."""

    enable_output_clone = Flag(False)
    """Return copies of a graph's outputs, which a later replay does not overwrite."""

    static_capture_size_limit = IntRange(64, 1)
    """Captures of one graph after which further shapes run eagerly, with a warning."""

    clone_input = Flag(True)
    """Memory reuse, mode three: copy the user's inputs into memory of the graph before a replay."""

    remove_cat_ops = Flag(
        True, effect=captured_by_torchair("a graph runs as it was written, concatenations included")
    )
    """Let operators write their part of a concatenation in place, and drop the concatenation."""


class Debug(Section, at="debug"):
    """Aids for finding faults, and the options of captured graphs."""

    graph_dump = Part(GraphDump)
    data_dump = Part(DataDump)
    fx_summary = Part(FxSummary)
    aclgraph = Part(AclGraphDebug)

    run_eagerly = Flag(False)
    """Run the compiled graph operator by operator, without capture."""

    deadlock_check = Flag(False, effect=ASCEND_FLAT)
    """Watch for replays that wait for each other; TorchAir 2.13 reads it in mode npugraph_ex only."""
