"""One model that reads all kinds of state, and single changes between the process that compiled it and a later one.

`tests.integration.test_fuzz` tries them on CPUs, ``benchmarks/stale_matrix.py`` some of them beside TorchAir alone.
"""

# ruff: noqa: E501 - a change in one line reads as a table

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.fuzz.parts.stale_model import CALL, HELPERS, MODEL, SLOTS, X
from tests.fuzz.program import Change, Pair, Program, Slots, Trial

_DECLARED = "from warmrank import declare_runtime_state\ndeclare_runtime_state(m, dict(main.BLOCKS))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A change, and what its first process has otherwise than the plain model.

    Attributes:
        change: of the second process; its name is the case's.
        first: slots of both processes; the change may have others.
        program: other fields of the program.
    """

    change: Change
    first: Slots
    program: Mapping[str, bool]


_NOTHING: Slots = {}


def _made(
    name: str, slots: Slots, *, first: Slots = _NOTHING, program: tuple[str, ...] = (), **more: Any
) -> Case:
    change = Change(name=name, slots=slots, **more)
    return Case(change=change, first=first, program=dict.fromkeys(program, True))


def _edits(table: Mapping[str, tuple[str, ...]]) -> list[Case]:
    """Cases from rows of slot, old text (which occurs once), new text, and pattern of the reason; without it the old graph fits."""
    found = []
    for name, (slot, old, new, *said) in table.items():
        assert SLOTS[slot].count(old) == 1, f"{name}: {old!r} in {slot}"
        slots = {slot: SLOTS[slot].replace(old, new)}
        found.append(_made(name, slots, said="".join(said), fits=not said))
    return found


def _sets(table: Mapping[str, tuple[str, ...]]) -> list[Case]:
    """Cases from rows of statements on the built model ``m``, and pattern of the reason."""
    return [
        _made(name, {}, mutate=text, said="".join(said), fits=not said)
        for name, (text, *said) in table.items()
    ]


def _inputs(table: Mapping[str, tuple[str, ...]]) -> list[Case]:
    """Cases from rows of another first argument, and pattern of the reason."""
    return [_made(name, {}, x=x, said="".join(said), fits=not said) for name, (x, *said) in table.items()]


SOURCE = _edits({
    "a line of the cached method": ("body", "+ self.residual * y", "- self.residual * y", "Main.forward changed"),
    "body of a function that it calls": ("helper", "* amount * GAIN", "* amount / GAIN", "helper:mixed changed"),
    "`forward` of a layer": ("top", "x + self.attention", "x - self.attention", "Block.forward changed"),
    "method of a layer": ("top", "x.pow(2).mean", "x.pow(2).amax", "Norm.spread changed"),
    "a constant in the code": ("body", "OFFSET * (index + 1)", "OFFSET * (index + 2)", "Main.forward changed"),
    "float in a global variable": ("top", "OFFSET = 0.0625", "OFFSET = 0.125", r"OFFSET: 0\.0625 -> 0\.125"),
    "number in a global list": ("helper", "[1.0, 0.5]", "[1.0, 0.75]", r"STEPS.*0\.75"),
    "class attribute of a layer": ("top", "EPSILON = 1e-5", "EPSILON = 0.5", r"EPSILON.*: 1e-05 -> 0\.5"),
    "default value of a function it calls": ("helper", "def mixed(x, amount=0.5)", "def mixed(x, amount=0.25)", "helper:mixed changed"),
    "value in a closure": ("init", "scaler(1.25)", "scaler(1.5)", r"1\.25 -> 1\.5"),
    "default value in a dataclass": ("helper", "scale: float = 2.0", "scale: float = 3.0", r"settings.scale: 2\.0 -> 3\.0"),
    "enum member in a dataclass": ("helper", "mode: Mode = Mode.SOFT", "mode: Mode = Mode.HARD", "mode"),
    "tensor in a global variable": ("top", "torch.linspace(-1.0, 1.0, 8)", "torch.ones(8)"),
    "layer of another class that prints alike": ("init", "self.gate = Gate()", "self.gate = OtherGate()", "module "),
    "body of an operator that is taken apart (`CompositeImplicitAutograd`)": ("ops", "x * 0.75 + 0.5", "x * 0.25 + 0.5", "operator launched::blend changed"),
    "result's shape of an operator": ("ops", "WIDTH = 4", "WIDTH = 2", "operator launched::cut changed"),
    "body of an operator that is called whole": ("ops", "x.flip(-1).contiguous()", "x.roll(1, -1)", "operator launched::twist changed"),
})  # fmt: skip
MODULE = _sets({
    "flag on the module": ("m.reversed = True", "reversed: False -> True"),
    "number in a list of the module": ("m.numbers[1] = 3.0", "numbers"),
    "length of a list of the module": ("m.numbers.append(3.0)", "numbers"),
    "value of its configuration object": ("m.settings.scale = 0.25", "settings.scale"),
    "`model.train()`": ("m.train()", "training: False -> True"),
    "method replaced on an instance": ("m.norm.spread = lambda x: x.abs().mean(-1, keepdim=True)", "norm.*spread"),
    "method replaced on its class": ("main.Gate.forward = lambda self, x: x * 0.5", "Gate"),
    "forward hook": ("m.gate.register_forward_hook(lambda layer, given, out: out * 2.0)", "forward_hooks"),
    "parameters and buffers in bfloat16": ("m.to(torch.bfloat16)", "parameters "),
    "one buffer in float64": ("m.offset = m.offset.double()", "parameters "),
    "shape of a buffer": ("m.offset = torch.ones(3, 8)", "parameters "),
    "strides of a parameter": ("w = m.head.weight; w.data = w.detach().t().contiguous().t()", "weight.*strides"),
    "layer without bias, which `str(module)` shows": ("m.head.bias = None", "parameters "),
    "other values of a parameter": ("nn.init.constant_(m.head.weight, 0.1)",),
    "a buffer's tensor replaced": ("m.offset = torch.ones(8)",),
})  # fmt: skip
ARGUMENTS = [
    *_inputs({
        "float64 input": (f"({X.format(n=3)}).double()", "x: dtype"),
        "transposed input": (f"({X.format(n=3)}).t().contiguous().t()", "x: strides"),
        "every second column of a larger tensor": ("(torch.linspace(-2.0, 2.0, 48).reshape(3, 16) + call)[:, ::2]", "x: strides"),
    }),
    *_edits({
        "one tensor more in a list": ("args", "[torch.ones(len(x), 8), ", "[torch.ones(len(x), 8), x * 2, ", "parts"),
        "tensor for None": ("args", "batched(x)", "batched(x, mask=torch.full((len(x), 1), 0.5))", "mask: None -> a tensor"),
    }),
    _made("boolean", {"kwargs": "gain=1.0, flip=True"}, said="flip: False -> True"),
    _made("number", {"kwargs": "gain=1.5, flip=False"}, said=r"gain: 1\.0 -> 1\.5"),
    *_edits({"number in a dataclass": ("args", "batched(x)", "batched(x, temperature=2.0)", r"temperature: 1\.0 -> 2\.0")}),
    *_inputs({
        "one row, where the graph is for more": (X.format(n=1), "sizes|does not hold"),
        "rows above a bound that the code asks": (X.format(n=32), "does not hold|sizes"),
        "more rows within the bound": (X.format(n=7),),
    }),
    *_edits({"one input is a view of another": ("args", "torch.zeros(len(x), 8)", "x", "alias|same|overlap|tensor|memory")}),
]  # fmt: skip
_NO_GRAD = "torch.no_grad()"
_ALIVE = {"after": f"m.eval()\nimport sys\nmain = sys.modules[__name__]\n{_DECLARED}"}
PROCESS = [
    _made("default dtype", {}, context=f"{_NO_GRAD}, scope.default_type(torch.float64)", said="default dtype"),
    _made("autocast", {}, context=f"{_NO_GRAD}, torch.autocast('cpu', torch.bfloat16)", said="autocast cpu: False -> True"),
    *_sets({
        "`use_deterministic_algorithms`": ("torch.use_deterministic_algorithms(True)", "deterministic algorithms: False -> True"),
        "`set_float32_matmul_precision`": ("torch.set_float32_matmul_precision('medium')", "precision: highest -> medium"),
    }),
    _made("environment variable that the code reads", {}, environment={"FUZZ_SWITCH": "on"}, said="FUZZ_SWITCH"),
    _made("runtime state: number of blocks of a KV cache", {}, first=_ALIVE, mutate=f"main.BLOCKS['number'] = 32\n{_DECLARED}", said="number.*16 -> 32"),
]  # fmt: skip
_DECOMPOSED = "return dict(custom_decompositions={{torch.ops.aten.clamp.default: helper.{}}})"
# Where the request's key looks; forked processes have asked before.
_ASKED = """
import importlib.metadata, importlib.util, pathlib, re, tempfile
import warmrank.worker.keys.request as key
here = pathlib.Path(tempfile.mkdtemp(dir=DIRECTORY))
key._components.cache_clear()
main.NEWER = True
"""
# A package of another release, as far as its ``version.py`` and the package itself say.
_RELEASE = (
    _ASKED
    + """
import {package}
text = pathlib.Path({package}.__file__).with_name('version.py').read_text()
(here / 'version.py').write_text(re.sub(r"({what}.*= )'[^']*'", r"\\g<1>'{version}'", text))
place, find = types.SimpleNamespace(origin=str(here / '__init__.py')), importlib.util.find_spec
key.importlib = types.SimpleNamespace(metadata=importlib.metadata, util=types.SimpleNamespace(
    find_spec=lambda name: place if name == '{package}' else find(name)))
"""
)
# A machine that has something of Ascend's, beside the CANN that there is.
_MACHINE = (
    _ASKED
    + """
from tests.support import ascend_machine
from warmrank.worker import settings
from warmrank.worker.values import replace
ascend_machine.{laid_out}
real, other = settings.ascend_places(), ascend_machine.ascend_places(here)
found = replace(real, ascend=other.ascend, devices=other.devices, npu_smi=other.npu_smi)
settings.ascend_places = lambda: found
"""
)
_TORCH = (
    _RELEASE.format(package="torch", what="__version__", version="2.13.9") + "torch.__version__ = '2.13.9'\n"
)
_CANN = "from tests.npu_emulator.cann import write_tree\nos.environ['ASCEND_HOME_PATH'] = str(write_tree(here / 'cann', version='9.0.0'))"
ENVIRONMENT = _sets({
    "CANN": (_ASKED + _CANN, r"cann .* -> .*9\.0\.0"),
    "torch": (_TORCH, r"torch .*2\.13\.9"),
    "driver": (_MACHINE.format(laid_out="lay_out_driver(here, '25.9.9')").replace("main.NEWER = True", ""), r"driver none -> ascend 25\.9\.9"),
})  # fmt: skip
# What only an NPU has, or TorchAir makes.
_BOUNDED = "config.post_grad_custom_post_pass = helper.bounded({})"
_PATTERN = "package.register_replacement(helper.searched, helper.{}, [torch.ones(3, 8)], search_fn_pattern=None, skip_duplicates=True)"
_NPU_RELEASE = (
    _RELEASE.format(package="torch_npu", what="__version__", version="2.13.0.post9")
    + "torch_npu.__version__ = '2.13.0.post9'\n"
)
_NPUS = (
    _MACHINE.format(laid_out="lay_out_npus(here, '910_9391', 1)")
    + "import torch_npu\ntorch_npu.npu.get_soc_version = lambda: 250"
)
_GROUPS = """\
m.eval()
import torch.distributed as dist
{}
{}
m.group = {}
with torch.no_grad():
    m.offset.mul_(dist.get_rank() + 1.0)"""
_PAIR = "pair = dist.new_group([0, 1])"
_OWN = "own = [dist.new_group([rank]) for rank in (0, 1)][dist.get_rank()]"
_SUMMED = "if self.group is not None:\n    y = dist._functional_collectives.all_reduce(y, 'sum', self.group) / dist.get_world_size(self.group)\n"
_RANKED = {
    "top": f"import torch.distributed as dist\nimport torch.distributed._functional_collectives\n{SLOTS['top']}",
    "init": f"self.group = None\n{SLOTS['init']}",
    "body": SLOTS["body"].replace("cache.add_(y)\n", f"{_SUMMED}cache.add_(y)\n"),
    "after": _GROUPS.format(_PAIR, _OWN, "pair"),
}


def _configured(name: str, first: str, then: str, said: str) -> Case:
    return _made(name, {"configure": then}, first={"configure": first}, program=("fresh",), said=said)


def _ranks(name: str, after: str, rank: tuple[int, int] | None = None) -> Case:
    return _made(name, {"after": after}, first=_RANKED, program=("gloo",), rank=rank, said="group")


BESIDE_TORCHAIR = {
    "source": SOURCE,
    "module": MODULE,
    "arguments": ARGUMENTS,
    "process": [
        *PROCESS,
        *_sets({
            "`set_deterministic_level`": ("import torch_npu; torch_npu.npu.set_deterministic_level(2)", "deterministic"),
            "`allow_hf32`": ("import torch_npu; torch_npu.npu.matmul.allow_hf32 = True", "hf32"),
        }),
    ],
    "configuration": [
        _configured("another custom decomposition", _DECOMPOSED.format("clamp_low"), _DECOMPOSED.format("clamp_high"), "decompositions"),
        _configured("value in the closure of a post-grad pass", _BOUNDED.format("9.0"), _BOUNDED.format("0.5"), "config .*pass"),
        _configured("registered fusion pattern", _PATTERN.format("replaced"), _PATTERN.format("replaced_otherwise"), "patterns"),
    ],
    "environment": [*ENVIRONMENT, *_sets({"torch_npu": (_NPU_RELEASE, "torch_npu .*post9"), "SoC": (_NPUS, "accelerator .*910_9391")})],
    "ranks": [
        _ranks("process groups made in another order", _GROUPS.format(_OWN, _PAIR, "pair")),
        _ranks("group of another size", _GROUPS.format(_PAIR, _OWN, "own")),
        _ranks("one rank instead of two", "m.eval()", rank=(0, 1)),
    ],
}  # fmt: skip
"""Cases by heading."""
_SOURCE = _edits({
    "module two imports away": ("conf", "return x + SHIFT", "return x - SHIFT", "conf:shifted changed"),
    "one of two equal functions": ("helper", "x.sin() * 0.25", "x.sin() * 0.75", "helper:curved changed"),
    "the other of two equal functions": ("conf", "x.sin() * 0.25", "x.sin() * 0.75", "conf:curved changed"),
    "body of a property": ("top", "1.0 / 3.0", "1.0 / 4.0", "Block.ratio changed"),
    "body of a static method": ("top", "x * 0.5\n", "x * 0.75\n", "Block.halved changed"),
    "body of a lambda": ("top", "sigmoid(x) * 2.0", "sigmoid(x) * 3.0", "Block.__init__.*changed"),
    "body of a closure": ("helper", "return x * factor\n", "return x + factor\n", "scale changed"),
    "body of a decorator": ("helper", "function(x) * factor", "function(x) - factor", "wrapper changed"),
    "decorator taken away": ("helper", "@times(0.75)\n", "", "decorated"),
    "argument of a decorator": ("helper", "@times(0.75)", "@times(0.5)", r"0\.75 -> 0\.5"),
    "decorator put on a method": ("top", "    def spread", "    @helper.loud\n    def spread", "Norm"),
    "constant of a called function's module": ("helper", "TABLE = 1.5", "TABLE = 2.5", r"GAIN: 1\.5 -> 2\.5"),
    "constant two imports away": ("conf", "SHIFT = 0.25", "SHIFT = 0.75", r"SHIFT: 0\.25 -> 0\.75"),
    "value in a constant dict": ("helper", "'low': 0.5", "'low': 0.25", r"TABLE\['low'\]: 0\.5 -> 0\.25"),
    "constant of a class that is read through a class": ("helper", "HIGH = 3.0", "HIGH = 0.5", r"HIGH.*3\.0 -> 0\.5"),
    "constant newly overridden in a subclass": ("helper", "class Tight(Limits):\n    pass", "class Tight(Limits):\n    HIGH = 0.5", "HIGH|Tight"),
    "method newly overridden in a subclass": ("top", "class BlockNorm(Norm):\n    pass", "class BlockNorm(Norm):\n    def spread(self, x):\n        return x.abs().mean(-1, keepdim=True)", "BlockNorm"),
    "another base class": ("top", "class BlockNorm(Norm)", "class BlockNorm(AbsoluteNorm)", "BlockNorm"),
    "type of a layer": ("init", "self.norm = Norm(8)", "self.norm = AbsoluteNorm(8)", "module "),
    "value of an enum member": ("helper", "SOFT = 0.5", "SOFT = 0.25", "mode"),
    "order of a named tuple's fields": ("helper", "    left: float\n    right: float", "    right: float\n    left: float", "Pair|pair|forward"),
    "argument of a partial": ("top", "negative_slope=0.1", "negative_slope=0.2", r"0\.1 -> 0\.2"),
    "imported name bound to another function": ("top", "import Options, mixed, scaler", "import Options, scaler, unmixed as mixed", "mixed"),
    "function replaced at the end of its module": ("conf", "def untraced", "def shifted(x):\n    return x * SHIFT\ndef untraced", "conf:shifted changed"),
})  # fmt: skip
_MODULE = _sets({
    "attribute that was burned in": ("m.residual = 0.25", r"self.residual: 0\.5 -> 0\.25"),
    "type of an attribute": ("m.residual = 1", r"self.residual: 0\.5 -> 1"),
    "attribute of a configuration object": ("m.settings.mode = helper.Mode.HARD", "settings.mode"),
    "shape of a parameter": ("m.norm.weight = nn.Parameter(torch.ones(3, 8))", "parameters "),
    "type of a parameter": ("m.norm.double(); m.head.double()", "parameters "),
    "tied parameters": ("m.norm.weight = m.blocks[0].norm.weight", "parameters "),
    "gradients of a parameter": ("m.head.weight.requires_grad_(False)", "weight.*requires_grad True -> False"),
    "shape of another buffer": ("m.blocks[0].attention.cache = torch.zeros(12, 8)", "parameters "),
    "one layer more": ("m.blocks.append(main.Block(8).eval())", "module "),
    "function as an attribute": ("m.blocks[0].activation = torch.relu", "activation"),
    "forward hook before": ("m.head.register_forward_pre_hook(lambda layer, given: (given[0] + 1.0,))", "pre_hooks"),
    "train of one layer": ("m.blocks[0].train()", "blocks.*training: False -> True"),
    "forward replaced on the instance": ("m.norm.forward = torch.tanh", "norm.*forward"),
    "static method replaced on the class": ("main.Block.halved = staticmethod(lambda x: x * 0.25)", "Block"),
    "method of a layer of torch replaced": ("nn.Linear.forward = helper.without_bias", "Linear"),
    "function of torch replaced": ("torch.tanh = torch.sin", "torch was patched"),
    "oneDNN": ("torch.backends.mkldnn.enabled = False", "mkldnn: True -> False"),
})  # fmt: skip
_PUT_BACK = [
    _made(f"{name} put back", {"after": SLOTS["after"]}, first={"after": f"m.eval()\n{text}"}, said=said)
    for name, text, said in (
        ("method of a layer of torch", "nn.Linear.forward = helper.without_bias", "Linear"),
        ("method of the class", "Norm.spread = helper.largest_spread", "Norm"),
    )
]
_BY_DEFAULT = {"args": CALL, "kwargs": ""}
_CALLS = [
    _made("default argument of the method", {"params": SLOTS["params"].replace("3", "5")}, first=_BY_DEFAULT, said="Main.forward changed"),
    *_inputs({
        "integers for numbers": ("torch.arange(24).reshape(3, 8)", "x: dtype float32 -> int64"),
        "gradients of an input": (f"({X.format(n=3)}).requires_grad_()", "x: requires_grad False -> True"),
    }),
    _made("size that was traced as fixed", {}, first={"options": "dynamic=False"}, x=X.format(n=4), said=r"sizes \[3, 8\] -> \[4, 8\]"),
    _made("integer for a number", {"kwargs": "gain=1, flip=False"}, said=r"gain: 1\.0 -> 1"),
    _made("number for an integer", {"args": f"{CALL}, 3.0"}, said="shift: .*float|shift: 3"),
    *_edits({
        "rank of an input": ("args", "torch.zeros(len(x), 8)", "torch.zeros(1, len(x), 8)", "cache: sizes"),
        "text in a dataclass": ("args", "batched(x)", "batched(x, note='flipped')", "note: 'plain' -> 'flipped'"),
        "another dataclass": ("args", "batched(x)", "batched(x, OtherBatch)", "Batch -> .*OtherBatch"),
        "length of a list": ("args", "[1.0, 2.0]", "[1.0, 2.0, 3.0]", "length of steps: 2 -> 3"),
        "number in a list": ("args", "[1.0, 2.0]", "[1.0, 5.0]", r"steps\[1\]: 2\.0 -> 5\.0"),
        "tuple for a list": ("args", "[1.0, 2.0]", "(1.0, 2.0)", "type of steps: builtins.list -> builtins.tuple"),
        "nothing for a list": ("args", "[1.0, 2.0]", "[]", "steps"),
    }),
]  # fmt: skip
_SEEN = _sets({
    "torch revision": (_RELEASE.format(package="torch", what="git_version", version="0123456789abcdef"), "torch .*git 0123456789ab"),
    "python version": (f"{_ASKED}import platform; platform.python_version = lambda: '3.11.99'", r"python .*3\.11\.99"),
    "instruction set": (f"{_ASKED}(here / 'cpuinfo').write_text('flags : avx sse2'); key._CPU_INFO = here / 'cpuinfo'", "cpu "),
    "torch_npu version": (f"{_ASKED}real = key._built; key._built = lambda name: ('2.13.0.post1', 'none') if name == 'torch_npu' else real(name)", r"torch_npu none -> 2\.13\.0\.post1"),
    "engine version": ("from warmrank.worker.engines.graph import GraphEngine; GraphEngine.version = '99'", r"engine graph \d+ -> graph 99"),
    "artifact format": ("from warmrank.worker.runtime import artifact, files; artifact.FORMAT = files.FORMAT = 99", "format"),
})  # fmt: skip
_OPTION = "config.debug.{} = {}"
_OPTIONS = [
    *(
        _made(name, {"configure": _OPTION.format(name, text)}, said=said)
        for name, text, said in (
            ("aclgraph.clone_input", "False", "config .*clone_input=false"),
            ("aclgraph.enable_output_clone", "True", "config .*enable_output_clone=true"),
            ("aclgraph.static_capture_size_limit", "2", "config .*size_limit=2"),
            ("run_eagerly", "True", "config .*run_eagerly=true"),
        )
    ),
    _made("dynamic", {"options": "dynamic=False"}, said="dynamic True -> False"),
    _made("custom decomposition", {"configure": _DECOMPOSED.format("clamp_low")}, said="decompositions none -> 1"),
    _made("what a custom decomposition calls", {"helper": HELPERS.replace("default(x, low)", "default(x, 1.0 * low)")}, first={"configure": _DECOMPOSED.format("clamp_low")}, said="decompositions "),
]  # fmt: skip
_IN_ORDER = _OPTION.format("aclgraph.clone_input", "False"), _OPTION.format("run_eagerly", "True")
_NEG, _SILU = (
    "torch.ops.aten.neg.default: lambda x: -1 * x",
    "torch.ops.aten.silu.default: lambda x: x.sigmoid()",
)
_TWO = "return dict(custom_decompositions={{{}, {}}})"
_FITS = [
    _made("nothing", {}, fits=True),
    _made("grad mode", {}, context="torch.enable_grad()", fits=True),
    *_edits({
        "comment": ("top", "        x = x + self.halved(x)", "        # half of it again\n        x = x + self.halved(x)  # so"),
        "blank lines": ("helper", "GAIN, STEPS", "\n\n\n\n\n\n\nGAIN, STEPS"),
        "spaces": ("conf", "return x + SHIFT", "return (x   +   SHIFT)"),
        "annotation": ("conf", "def shifted(x)", "def shifted(x: 'torch.Tensor')"),
        "body of a function that is not traced": ("conf", "x - 100.0", "x - 200.0"),
        "body of a method that is not traced": ("top", "x.abs().mean(-1, keepdim=True) +", "x.abs().mean(-1, keepdim=True) -"),
        "another function in a traced module": ("conf", "def untraced", "def fresh(x):\n    return x\ndef untraced"),
        "constant that is not read": ("conf", "SHIFT = 0.25\n", "SHIFT = 0.25\nUNREAD = 7\n"),
    }),
    *_sets({
        "another working directory": ("os.chdir('/')",),
        "host name": ("import platform, socket; socket.gethostname = platform.node = lambda: 'elsewhere'",),
        "home": ("os.environ['HOME'] = '/nonexistent'",),
        "user": ("os.environ.update(USER='somebody', LOGNAME='somebody')",),
        "port and address": ("os.environ.update(MASTER_PORT='29777', MASTER_ADDR='10.1.2.3')",),
        "device index": ("os.environ.update(CUDA_VISIBLE_DEVICES='3', ASCEND_RT_VISIBLE_DEVICES='5', LOCAL_RANK='3')",),
        "number of threads": ("torch.set_num_threads(2)",),
        "time zone and language": ("import time; os.environ.update(TZ='Asia/Tokyo', LC_ALL='C'); time.tzset()",),
        "umask": ("os.umask(0o027)",),
        "checkpoint": ("[nn.init.normal_(p) for p in m.parameters()]",),
        "content of a buffer": ("m.blocks[0].attention.cache.fill_(1.5)",),
        "attribute that is not read": ("m.unread = 5; m.blocks[0].note = 'x'",),
        "default device that is the same": ("torch.set_default_device('cpu')",),
        "seed": ("torch.manual_seed(12345)",),
    }),
    _made("integer", {"args": f"{CALL}, 6"}, fits=True),
    _made("default given explicitly", {"args": SLOTS["args"], "kwargs": SLOTS["kwargs"]}, first=_BY_DEFAULT, fits=True),
    _made("values", {}, x=f"({X.format(n=3)}) * -3.0", fits=True),
    _made("order of options", {"configure": "\n".join(reversed(_IN_ORDER))}, first={"configure": "\n".join(_IN_ORDER)}, fits=True),
    _made("order of a dict of options", {"configure": _TWO.format(_SILU, _NEG)}, first={"configure": _TWO.format(_NEG, _SILU)}, fits=True),
]  # fmt: skip
_REFUSED = [
    _made("global hook", {}, mutate="nn.modules.module.register_module_forward_hook(lambda layer, given, out: out * 2)", said="1 global module hooks are active", refused=True),
    _made("torch function mode", {}, context=f"{_NO_GRAD}, torch.overrides.BaseTorchFunctionMode()", said="1 torch function modes are active", refused=True),
    _made("another module in the place of one that is called", {}, mutate="import importlib; old = sys.modules.pop('fuzzed.conf'); importlib.import_module('fuzzed.conf'); old.SHIFT = 0.75", said="shifted is of a module fuzzed.conf whose place in sys.modules another one has taken", refused=True),
]  # fmt: skip
_ALL = [
    *SOURCE, *MODULE, *ARGUMENTS, *PROCESS, *ENVIRONMENT,
    *_SOURCE, *_MODULE, *_PUT_BACK, *_CALLS, *_SEEN, *_OPTIONS, *_FITS, *_REFUSED,
]  # fmt: skip
CASES = {case.change.name: case for case in _ALL}


def trials(cases: Iterable[Case], **program_of: str) -> Iterator[Trial]:
    """Trials of cases that launch the same model, as a pair each whose change has its case's name.

    Args:
        cases: which ones.
        program_of: other fields of all programs.
    """
    alike: dict[str, list[Case]] = {}
    for case in cases:
        alike.setdefault(repr((case.first, case.program)), []).append(case)
    for those in alike.values():
        one = those[0]
        part = replace(MODEL, slots={**MODEL.slots, **one.first})
        program = Program(parts=(part,), x=X.format(n=3), **program_of, **one.program)  # type: ignore[arg-type]
        yield Trial(seed=1, program=program, pairs=tuple(Pair(index=0, change=case.change) for case in those))
