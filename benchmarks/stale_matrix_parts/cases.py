"""The cases of ``benchmarks/stale_matrix.py`` as data: one change each between two processes."""

from __future__ import annotations

from dataclasses import dataclass

_DECLARED = (
    "from warmrank import declare_runtime_state\ndeclare_runtime_state(model, dict(definition.BLOCKS))\n"
)
_CLOSURE = "config.post_grad_custom_post_pass = definition.bounded({})"
_PATTERN = """
package.register_replacement(
    definition.searched, definition.{}, [torch.ones(3, 8)], search_fn_pattern=None)
"""
_DECOMPOSITION = "options['custom_decompositions'] = {{torch.ops.aten.clamp.default: definition.{}}}"
_CANN = """
from tests.npu_emulator.cann import write_tree
os.environ['ASCEND_HOME_PATH'] = str(write_tree(Path(DIRECTORY, 'cann'), version='{}'))
"""
# A package of another release, as far as its ``version.py`` and the package itself say.
_RELEASE = """
import importlib.metadata, importlib.util, re, types
import {package}, warmrank.worker.keys.request as key
text = Path({package}.__file__).with_name('version.py').read_text()
fake = Path(DIRECTORY, '{package}')
fake.mkdir(exist_ok=True)
(fake / 'version.py').write_text(re.sub(r"(__version__.*= )'[^']*'", r"\\g<1>'{version}'", text))
found = types.SimpleNamespace(origin=str(fake / '__init__.py'))
find = importlib.util.find_spec
key.importlib = types.SimpleNamespace(
    util=types.SimpleNamespace(find_spec=lambda name: found if name == '{package}' else find(name)),
    metadata=importlib.metadata)
{package}.__version__ = '{version}'
"""
_NPU_VERSION = _RELEASE.format(package="torch_npu", version="2.13.0.post9")
_TORCH_VERSION = _RELEASE.format(package="torch", version="2.13.9")
# A machine that has something of Ascend's, beside the CANN that there is.
_MACHINE = """
import torch_npu
from warmrank.worker import settings
from tests.support import ascend_machine
from warmrank.worker.values import replace
root = Path(DIRECTORY, 'machine')
ascend_machine.{laid_out}
real, other = settings.ascend_places(), ascend_machine.ascend_places(root)
found = replace(real, ascend=other.ascend, devices=other.devices, npu_smi=other.npu_smi)
settings.ascend_places = lambda: found
"""
_SOC = (
    _MACHINE.format(laid_out="lay_out_npus(root, '910_9391', 1)")
    + """
torch_npu.npu.get_soc_version = lambda: 250
"""
)
_DRIVER = _MACHINE.format(laid_out="lay_out_driver(root, '25.9.9')")
_GROUPS = """
import torch.distributed as dist
pair = dist.new_group([0, 1])
own = [dist.new_group([rank]) for rank in (0, 1)][dist.get_rank()]
model.group = {}
with torch.no_grad():
    model.offset.mul_(dist.get_rank() + 1.0)
"""
_SWAPPED = _GROUPS.replace("pair = dist.new_group([0, 1])\n", "").replace(
    "model.group", "pair = dist.new_group([0, 1])\nmodel.group"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What the first process does; the second one does the same, but for what its case says."""

    before: str = ""
    build: str = ""
    config: str = ""
    num_ranks: int = 1
    modes: tuple[str, ...] = ("reduce-overhead", "npugraph_ex")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One difference between two processes.

    Attributes:
        group: heading in the table.
        name: what is different.
        edit: a line of the model or its operators: old text, which occurs once, and new text.
        before, build, config, call, context: see `benchmarks.stale_matrix_parts.jobs.Job`; of the second
            process.
        start: what the first process does.
        num_ranks: of the second process; as many as of the first where it is 0.
        unseen: eager's result knows nothing of the change (a pass, say): compared with what TorchAir makes of
            the changed script with an empty cache.
        same: whether the old graph is right after the change as well.
        reason: pattern of the reason that warmrank has to give for a miss.
    """

    group: str
    name: str
    edit: tuple[str, str] = ("", "")
    before: str = ""
    build: str = ""
    config: str = ""
    call: str = ""
    context: str = "torch.no_grad()"
    start: Start = Start()
    num_ranks: int = 0
    unseen: bool = False
    same: bool = False
    reason: str = ""


def _edit(name: str, old: str, new: str, reason: str, *, same: bool = False) -> Case:
    return Case(group="source", name=name, edit=(old, new), reason=reason, same=same)


SOURCE = (
    _edit("a line of the cached method", "+ self.offset *", "- self.offset *", "Model.step changed"),
    _edit("body of a function that it calls", "return x + by", "return x - by", "shifted changed"),
    _edit("`forward` of a layer", "return x * torch.rsqrt", "return x / torch.rsqrt", "Norm.forward changed"),
    _edit("method of a layer", "x.pow(2).mean(", "x.pow(2).amax(", "Norm.spread changed"),
    _edit("a constant in the code", "x.clamp(-9.0, 9.0)", "x.clamp(-2.0, 2.0)", "Model.step changed"),
    _edit("float in a global variable", "SCALE = 2.0", "SCALE = 3.0", r"SCALE.*2\.0 -> 3\.0"),
    _edit("number in a global list", "STEPS = [1.0, 0.5]", "STEPS = [1.0, 1.5]", "STEPS"),
    _edit("class attribute of a layer", "eps = 0.01", "eps = 0.5", r"eps.*0\.01 -> 0\.5"),
    _edit("default value of a function it calls", "by: float = 0.25", "by: float = 0.75", "shifted|0.25"),
    _edit("value in a closure", "scaler(1.25)", "scaler(2.5)", r"1\.25 -> 2\.5"),
    _edit("default value in a dataclass", "residual: float = 0.5", "residual: float = 0.75", "residual"),
    _edit("enum member in a dataclass", "mode: Mode = Mode.SOFT", "mode: Mode = Mode.HARD", "mode"),
    _edit("tensor in a global variable", "torch.linspace(-1.0, 1.0, 8)", "torch.ones(8)", "", same=True),
    _edit(
        "layer of another class that prints alike", "self.gate = Gate()", "self.gate = OtherGate()", "module"
    ),
    _edit(
        "body of an operator that is taken apart (`CompositeImplicitAutograd`)",
        "return x * 0.75 + 0.5",
        "return x * 0.25 + 0.5",
        "operator stale_model::blend changed",
    ),
    _edit("result's shape of an operator", "WIDTH = 4", "WIDTH = 2", "operator stale_model::cut changed"),
    _edit(
        "body of an operator that is called whole",
        "return x.flip(-1).contiguous()",
        "return x.roll(1, -1)",
        "operator stale_model::twist changed",
    ),
)


def _model(name: str, build: str, reason: str, *, same: bool = False) -> Case:
    return Case(group="module", name=name, build=build, reason=reason, same=same)


MODULE = (
    _model("flag on the module", "model.flip = True", "flip: False -> True"),
    _model("number in a list of the module", "model.layers = [1.0, 3.0]", "layers"),
    _model("length of a list of the module", "model.layers.append(3.0)", "layers"),
    _model("value of its configuration object", "model.options.residual = 0.25", "residual"),
    _model("`model.train()`", "model.train()", "training: False -> True"),
    _model("method replaced on an instance", "model.norm.spread = definition.other_spread", "spread"),
    _model("method replaced on its class", "definition.Norm.forward = definition.other_forward", "Norm"),
    _model("forward hook", "model.gate.register_forward_hook(definition.doubled)", "hook"),
    _model("parameters and buffers in bfloat16", "model.to(torch.bfloat16)", "parameters"),
    _model("one buffer in float64", "model.offset = model.offset.double()", "parameters"),
    _model("shape of a buffer", "model.offset = torch.ones(3, 8)", "parameters"),
    _model(
        "strides of a parameter", "w = model.head.weight; w.data = w.detach().t().contiguous().t()", "strides"
    ),
    _model("layer without bias, which `str(module)` shows", "model.head.bias = None", "parameters"),
    _model("other values of a parameter", "torch.nn.init.constant_(model.head.weight, 0.1)", "", same=True),
    _model("a buffer's tensor replaced", "model.offset = torch.ones(8)", "", same=True),
)


def _call(name: str, call: str, reason: str, *, same: bool = False) -> Case:
    return Case(group="arguments", name=name, call=call, reason=reason, same=same)


ARGUMENTS = (
    _call("float64 input", "batch.tokens = batch.tokens.double()", "tokens: dtype"),
    _call("transposed input", "batch.tokens = batch.tokens.t().contiguous().t()", "tokens: strides"),
    _call(
        "every second column of a larger tensor",
        "batch.tokens = torch.rand(3, 16)[:, ::2]",
        "tokens: strides",
    ),
    _call("one tensor more in a list", "args[1].append(torch.ones(3, 8))", "parts"),
    _call("tensor for None", "batch.mask = torch.full((3, 1), 0.5)", "mask: None -> a tensor"),
    _call("boolean", "kwargs['reverse'] = True", "reverse: False -> True"),
    _call("number", "args[3] = 1.5", r"gain: 1\.0 -> 1\.5"),
    _call("number in a dataclass", "batch.temperature = 2.0", r"temperature: 1\.0 -> 2\.0"),
    _call("one row, where the graph is for more", "{rows}(1)", "sizes|does not hold"),
    _call("rows above a bound that the code asks", "{rows}(32)", "does not hold|sizes"),
    _call("more rows within the bound", "{rows}(7)", "", same=True),
    _call("one input is a view of another", "args[2] = batch.tokens", "alias|same|overlap|tensor|memory"),
)
_ROWS = """
def rows(n):
    args[:] = [definition.batch(n), [torch.ones(n, 8), torch.full((n, 8), 0.5)], torch.zeros(n, 8), 1.0]
"""


def _process(name: str, reason: str, **more: str) -> Case:
    return Case(group="process", name=name, reason=reason, **more)  # type: ignore[arg-type]


PROCESS = (
    _process("default dtype", "default dtype", context="default_type(torch.float64)"),
    _process("autocast", "autocast", context="both(torch.no_grad(), torch.autocast('cpu', torch.bfloat16))"),
    _process(
        "`use_deterministic_algorithms`", "deterministic", before="torch.use_deterministic_algorithms(True)"
    ),
    _process(
        "`set_deterministic_level`",
        "deterministic",
        before="import torch_npu; torch_npu.npu.set_deterministic_level(2)",
    ),
    _process(
        "`set_float32_matmul_precision`", "precision", before="torch.set_float32_matmul_precision('medium')"
    ),
    _process("`allow_hf32`", "hf32", before="import torch_npu; torch_npu.npu.matmul.allow_hf32 = True"),
    _process(
        "environment variable that the code reads",
        "STALE_MODEL_SWITCH",
        before="os.environ['STALE_MODEL_SWITCH'] = 'on'",
    ),
    Case(
        group="process",
        name="runtime state: number of blocks of a KV cache",
        build=f"definition.BLOCKS['number'] = 32\n{_DECLARED}",
        start=Start(build=_DECLARED),
        reason="number.*16 -> 32",
    ),
)
CONFIG = (
    Case(
        group="configuration",
        name="another custom decomposition",
        start=Start(config=_DECOMPOSITION.format("clamp_low")),
        config=_DECOMPOSITION.format("clamp_high"),
        unseen=True,
        reason="decompositions",
    ),
    Case(
        group="configuration",
        name="value in the closure of a post-grad pass",
        start=Start(config=_CLOSURE.format("9.0")),
        config=_CLOSURE.format("1.0"),
        unseen=True,
        reason="config .*pass",
    ),
    Case(
        group="configuration",
        name="registered fusion pattern",
        start=Start(config=_PATTERN.format("replaced")),
        config=_PATTERN.format("replaced_otherwise"),
        unseen=True,
        reason="patterns",
    ),
)
ENVIRONMENT = (
    Case(
        group="environment",
        name="CANN",
        start=Start(before=_CANN.format("8.5.0")),
        before=_CANN.format("9.0.0"),
        reason=r"cann .*8\.5\.0.* -> .*9\.0\.0",
    ),
    Case(group="environment", name="torch_npu", before=_NPU_VERSION, reason=r"torch_npu .*post9"),
    Case(group="environment", name="torch", before=_TORCH_VERSION, reason=r"torch .*2\.13\.9"),
    Case(group="environment", name="driver", before=_DRIVER, reason=r"driver none -> ascend 25\.9\.9"),
    Case(group="environment", name="SoC", before=_SOC, reason=r"accelerator .*910_9391"),
)
RANKS = (
    Case(
        group="ranks",
        name="process groups made in another order",
        start=Start(build=_GROUPS.format("pair"), num_ranks=2),
        build=_SWAPPED.format("pair"),
        reason="group",
    ),
    Case(
        group="ranks",
        name="group of another size",
        start=Start(build=_GROUPS.format("pair"), num_ranks=2),
        build=_GROUPS.format("own"),
        reason="group",
    ),
    Case(
        group="ranks",
        name="one rank instead of two",
        start=Start(build=_GROUPS.format("pair"), num_ranks=2),
        build="pass",
        num_ranks=1,
        reason="group",
    ),
)


def _with_rows(case: Case) -> Case:
    from dataclasses import replace

    return replace(case, call=_ROWS + case.call.format(rows="rows")) if "{rows}" in case.call else case


CASES = tuple(map(_with_rows, (*SOURCE, *MODULE, *ARGUMENTS, *PROCESS, *CONFIG, *ENVIRONMENT, *RANKS)))
SKIPPED = {"another Python": "needs a second Python on the machine; `python` is in warmrank's key"}
