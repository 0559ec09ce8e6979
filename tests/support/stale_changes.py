"""Single changes between two launches of `tiny_model`: those that matter, and those that do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support.stale import Change

PATCHES = "from tiny_model import patches"
STATIC = "options['dynamic'] = False"
DECOMPOSED = """
from tiny_model.helpers import decomposed_clamp
options['custom_decompositions'] = {torch.ops.aten.clamp.default: decomposed_clamp}
"""
GRAD = "torch.enable_grad()"


def edit(file: str, old: str, new: str, reason: str = "", **more: Any) -> Change:
    return Change(edits=((f"{file}.py", old, new),), reason=reason, **more)


SOURCE = {
    "line in the method": edit(
        "model", "+ self.residual * x", "- self.residual * x", r"model:Model.step changed"
    ),
    "line in forward of a layer": edit(
        "model", "OFFSET * (index + 1)", "OFFSET * (index + 2)", r"model:Model.step changed"
    ),
    "function it calls": edit("helpers", "amount * GAIN", "amount / GAIN", r"helpers:mixed changed"),
    "module two imports away": edit("deeper", "x + SHIFT", "x - SHIFT", r"deeper:shifted changed"),
    "one of two equal functions": edit("right", "0.25", "0.75", r"right:curved changed"),
    "the other of two equal functions": edit("left", "0.25", "0.75", r"left:curved changed"),
    "method of a submodule": edit("model", "x.pow(2).mean", "x.abs().mean", r"model:Norm.spread changed"),
    "body of a property": edit("model", "1.0 / 3.0", "1.0 / 4.0", r"model:Block.ratio changed"),
    "body of a static method": edit("model", "x * 0.5\n", "x * 0.75\n", r"model:Block.halved changed"),
    "body of a lambda": edit(
        "model", "sigmoid(x) * 2.0", "sigmoid(x) * 3.0", r"model:Block.__init__.*changed"
    ),
    "body of a closure": edit("helpers", "return x * factor\n", "return x + factor\n", r"scale changed"),
    "body of a decorator": edit(
        "helpers", "function(x) * factor", "function(x) - factor", r"wrapper changed"
    ),
    "decorator taken away": edit("helpers", "@times(0.75)\n", "", r"decorated"),
    "argument of a decorator": edit("helpers", "@times(0.75)", "@times(0.5)", r"0\.75 -> 0\.5"),
    "decorator put on a method": edit(
        "model", "    def spread", "    @helpers.loud\n    def spread", r"Norm"
    ),
    "default argument": edit(
        "helpers",
        "amount: float = 0.5) -> torch.Tensor:\n    return deeper.shifted(x) * amount * GAIN",
        "amount: float = 0.25) -> torch.Tensor:\n    return deeper.shifted(x) * amount * GAIN",
        r"helpers:mixed changed",
    ),
    "default argument of the method": edit(
        "model", "offset: int = 3", "offset: int = 5", r"model:Model.step changed"
    ),
    "constant of the module": edit(
        "model", "OFFSET = 0.0625", "OFFSET = 0.125", r"OFFSET: 0\.0625 -> 0\.125"
    ),
    "constant of a called function's module": edit(
        "helpers", "GAIN = 1.5", "GAIN = 2.5", r"GAIN: 1\.5 -> 2\.5"
    ),
    "constant two imports away": edit("deeper", "SHIFT = 0.25", "SHIFT = 0.75", r"SHIFT: 0\.25 -> 0\.75"),
    "value in a constant dict": edit(
        "helpers", '"low": 0.5', '"low": 0.25', r"TABLE\['low'\]: 0\.5 -> 0\.25"
    ),
    "value in a constant list": edit("helpers", "STEPS = [1.0, 0.5]", "STEPS = [1.0, 0.75]", r"STEPS.*0\.75"),
    "constant of a class": edit("model", "EPSILON = 1e-5", "EPSILON = 1e-3", r"EPSILON.*: 1e-05 -> 0\.001"),
    "constant of a class that is read through a class": edit(
        "helpers", "HIGH = 3.0", "HIGH = 0.5", r"HIGH.*3\.0 -> 0\.5"
    ),
    "constant newly overridden in a subclass": edit(
        "helpers", "class Tight(Limits):\n    pass", "class Tight(Limits):\n    HIGH = 0.5", r"HIGH|Tight"
    ),
    "method newly overridden in a subclass": edit(
        "model",
        "class BlockNorm(Norm):\n    pass",
        "class BlockNorm(Norm):\n    def spread(self, x):\n        return x.abs().mean(-1, keepdim=True)",
        r"BlockNorm",
    ),
    "another base class": edit(
        "model", "class BlockNorm(Norm)", "class BlockNorm(AbsoluteNorm)", r"BlockNorm"
    ),
    "type of a layer": edit(
        "model", "self.norm = Norm(width)", "self.norm = AbsoluteNorm(width)", r"module "
    ),
    "value of an enum member": edit("helpers", "SOFT = 0.125", "SOFT = 0.25", r"mode"),
    "order of a named tuple's fields": edit(
        "helpers", "    left: float\n    right: float", "    right: float\n    left: float", r"Pair|pair|step"
    ),
    "value in a closure": edit("model", "scaler(1.25)", "scaler(1.5)", r"1\.25 -> 1\.5"),
    "argument of a partial": edit("model", "negative_slope=0.1", "negative_slope=0.2", r"0\.1 -> 0\.2"),
    "imported name bound to another function": edit(
        "model", "import Options, mixed, scaler", "import Options, scaler, unmixed as mixed", r"mixed"
    ),
    "default value of a dataclass that was built": edit(
        "helpers", "scale: float = 2.0", "scale: float = 3.0", r"options.scale: 2\.0 -> 3\.0"
    ),
    "function replaced at the end of its module": Change(
        edits=(
            (
                "deeper.py",
                "def untraced",
                "def shifted(x: torch.Tensor) -> torch.Tensor:\n    return x * SHIFT\n\n\ndef untraced",
            ),
        ),
        reason=r"deeper:shifted changed",
    ),
}
MODEL = {
    "attribute that was burned in": Change(
        build="model.residual = 0.25", reason=r"self.residual: 0\.5 -> 0\.25"
    ),
    "type of an attribute": Change(build="model.residual = 1", reason=r"self.residual: 0\.5 -> 1"),
    "attribute of a configuration object": Change(
        build="model.options.mode = definition.helpers.Mode.HARD", reason=r"options.mode"
    ),
    "shape of a parameter": Change(build="model.head = torch.nn.Linear(8, 6)", reason=r"parameters "),
    "type of a parameter": Change(build="model.norm.double(); model.head.double()", reason=r"parameters "),
    "missing parameter": Change(build="model.head.bias = None", reason=r"parameters "),
    "tied parameters": Change(build="model.norm.weight = model.blocks[0].norm.weight", reason=r"parameters "),
    "gradients of a parameter": Change(
        build="model.head.weight.requires_grad_(False)", reason=r"weight.*requires_grad True -> False"
    ),
    "strides of a parameter": Change(
        build="w = model.head.weight; w.data = w.detach().t().contiguous().t()", reason=r"weight.*strides"
    ),
    "shape of a buffer": Change(
        build="for block in model.blocks: block.attention.cache = torch.zeros(12, 8)", reason=r"parameters "
    ),
    "one layer more": Change(build="model.blocks.append(definition.Block(8).eval())", reason=r"module "),
    "function as an attribute": Change(build="model.blocks[0].activation = torch.relu", reason=r"activation"),
    "forward hook": Change(
        build=f"{PATCHES}; model.norm.register_forward_hook(patches.doubled_output)", reason=r"forward_hooks"
    ),
    "forward hook before": Change(
        build=f"{PATCHES}; model.head.register_forward_pre_hook(patches.raised_input)", reason=r"pre_hooks"
    ),
    "train": Change(build="model.train()", reason=r"training: False -> True"),
    "train of one layer": Change(build="model.blocks[0].train()", reason=r"blocks.*training: False -> True"),
    "method replaced on the instance": Change(
        build=f"{PATCHES}; model.norm.spread = patches.absolute_spread", reason=r"norm.*spread"
    ),
    "forward replaced on the instance": Change(
        build="model.norm.forward = torch.tanh", reason=r"norm.*forward"
    ),
}
PATCH = {
    "method replaced on the class": Change(
        build=f"{PATCHES}; definition.Block.halved = staticmethod(patches.quarter)", reason=r"Block"
    ),
    "method of a layer of torch replaced": Change(
        build=f"{PATCHES}; torch.nn.Linear.forward = patches.without_bias", reason=r"Linear"
    ),
    "method of a layer of torch put back": Change(
        base=f"{PATCHES}\noriginal = torch.nn.Linear.forward\ntorch.nn.Linear.forward = patches.without_bias",
        config="torch.nn.Linear.forward = original",
        reason=r"Linear",
    ),
    "method of the class put back": Change(
        base=f"{PATCHES}\noriginal = definition.Norm.spread\ndefinition.Norm.spread = patches.largest_spread",
        config="definition.Norm.spread = original",
        reason=r"Norm",
    ),
    "function of torch replaced": Change(build="torch.tanh = torch.sin", reason=r"torch was patched"),
}
CALL = {
    "type of an input": Change(
        call="batch.tokens = batch.tokens.double(); model.double()", reason=r"parameters "
    ),
    "integers for numbers": Change(
        call="batch.tokens = torch.arange(24).reshape(3, 8)", reason=r"tokens: dtype float32 -> int64"
    ),
    "rank of an input": Change(call="batch.tokens = batch.tokens.reshape(3, 4, 2)", reason=r"tokens: sizes"),
    "one row, where sizes above one were traced": Change(
        call="batch.tokens, batch.positions = batch.tokens[:1].clone(), batch.positions[:1].clone()",
        reason=r"sizes|does not hold",
    ),
    "size that was traced as fixed": Change(
        base=STATIC, call="args[0] = definition.batch(rows=4)", reason=r"sizes \[3, 8\] -> \[4, 8\]"
    ),
    "strides of an input": Change(
        call="batch.tokens = batch.tokens.t().contiguous().t()", reason=r"tokens: strides"
    ),
    "gradients of an input": Change(
        call="batch.tokens.requires_grad_()", reason=r"tokens: requires_grad False -> True"
    ),
    "number in a dataclass": Change(call="batch.temperature = 2.0", reason=r"temperature: 1\.0 -> 2\.0"),
    "text in a dataclass": Change(call="batch.note = 'flipped'", reason=r"note: 'plain' -> 'flipped'"),
    "tensor for None": Change(call="batch.mask = torch.ones(3, 1)", reason=r"mask: None -> a tensor"),
    "another dataclass": Change(
        call="args[0] = definition.OtherBatch(batch.tokens, batch.positions)", reason=r"Batch -> .*OtherBatch"
    ),
    "number": Change(call="kwargs['gain'] = 1.5", reason=r"gain: 1\.0 -> 1\.5"),
    "integer for a number": Change(call="kwargs['gain'] = 1", reason=r"gain: 1\.0 -> 1"),
    "flag": Change(call="kwargs['flip'] = True", reason=r"flip: False -> True"),
    "number for an integer": Change(call="kwargs['offset'] = 3.0", reason=r"offset: .*float|offset: 3"),
    "length of a list": Change(call="args[1].append(3.0)", reason=r"length of steps: 2 -> 3"),
    "number in a list": Change(call="args[1][1] = 5.0", reason=r"steps\[1\]: 2\.0 -> 5\.0"),
    "tuple for a list": Change(
        call="args[1] = tuple(args[1])", reason=r"type of steps: builtins.list -> builtins.tuple"
    ),
    "nothing for a list": Change(call="args[1] = []", reason=r"steps"),
}
PROCESS = {
    "default type": Change(context="default_type(torch.float64)", reason=r"default dtype"),
    "autocast": Change(
        context="both(torch.no_grad(), torch.autocast('cpu', torch.bfloat16))",
        reason=r"autocast cpu: False -> True",
    ),
    "deterministic algorithms": Change(
        before="torch.use_deterministic_algorithms(True)", reason=r"deterministic algorithms: False -> True"
    ),
    "matmul precision": Change(
        before="torch.set_float32_matmul_precision('medium')", reason=r"precision: highest -> medium"
    ),
    "environment variable that is read": Change(
        before="os.environ['TINY_MODEL_SWITCH'] = 'on'", reason=r"TINY_MODEL_SWITCH"
    ),
    "oneDNN": Change(before="torch.backends.mkldnn.enabled = False", reason=r"mkldnn: True -> False"),
}
FAKE_TORCH = """
import importlib.util, pathlib, types
import warmrank.worker.keys.request
real = pathlib.Path(torch.__file__).with_name('version.py').read_text()
fake = pathlib.Path(DIRECTORY, 'torch')
fake.mkdir()
changed = real.replace({old}, {new})
assert changed != real
(fake / 'version.py').write_text(changed)
found = types.SimpleNamespace(origin=str(fake / '__init__.py'))
warmrank.worker.keys.request.importlib = types.SimpleNamespace(
    util=types.SimpleNamespace(find_spec=lambda name: found), metadata=importlib.metadata)
"""
FAKE_FILE = """
import pathlib
import warmrank.worker.keys.request as e
fake = pathlib.Path(DIRECTORY, '{file}')
fake.write_text('{text}')
"""
ASCEND = """
import dataclasses
import pathlib
from warmrank.worker import settings
driver = pathlib.Path(DIRECTORY, 'ascend', 'driver')
driver.mkdir(parents=True)
real = settings.ascend_places
settings.ascend_places = lambda: dataclasses.replace(real(), ascend=driver.parent)
"""
ENVIRONMENT = {
    "torch version": Change(
        before=FAKE_TORCH.format(old="torch.__version__", new="'2.99.0'"), reason=r"torch .* -> 2\.99\.0"
    ),
    "torch revision": Change(
        before=FAKE_TORCH.format(old="torch.version.git_version", new="'0123456789abcdef'"),
        reason=r"torch .*git 0123456789ab",
    ),
    "python version": Change(
        before="import platform; platform.python_version = lambda: '3.11.99'", reason=r"python .*3\.11\.99"
    ),
    "instruction set": Change(
        before=FAKE_FILE.format(file="cpuinfo", text="flags : avx sse2")
        + "import warmrank.worker.keys.request; warmrank.worker.keys.request._CPU_INFO = fake",
        reason=r"cpu ",
    ),
    "driver": Change(
        before=ASCEND + "(driver / 'version.info').write_text('Version=25.0.1')",
        reason=r"driver none -> ascend 25\.0\.1",
    ),
    "cann version": Change(
        before="import os, pathlib\ninfo = pathlib.Path(DIRECTORY, 'share', 'info', 'runtime')\n"
        "info.mkdir(parents=True)\n(info / 'version.info').write_text('Version=9.2.0')\n"
        "os.environ['ASCEND_HOME_PATH'] = str(DIRECTORY)",
        reason=r"cann none -> 9\.2\.0",
    ),
    "torch_npu version": Change(
        before="import warmrank.worker.keys.request as e; real = e._built\n"
        "e._built = lambda name: ('2.13.0.post1', 'none') if name == 'torch_npu' else real(name)",
        reason=r"torch_npu none -> 2\.13\.0\.post1",
    ),
    "engine version": Change(
        before="from warmrank.worker.engines.graph import GraphEngine; GraphEngine.version = '99'",
        reason=r"engine graph \d+ -> graph 99",
    ),
    "artifact format": Change(
        before="import warmrank.worker.runtime.artifact; warmrank.worker.runtime.artifact.FORMAT = 99",
        reason=r"format",
    ),
}
CONFIG = {
    "clone_input": Change(
        config="config.debug.aclgraph.clone_input = False", reason=r"config .*clone_input=false"
    ),
    "enable_output_clone": Change(
        config="config.debug.aclgraph.enable_output_clone = True", reason=r"config .*enable_output_clone=true"
    ),
    "static_capture_size_limit": Change(
        config="config.debug.aclgraph.static_capture_size_limit = 2", reason=r"config .*size_limit=2"
    ),
    "run_eagerly": Change(config="config.debug.run_eagerly = True", reason=r"config .*run_eagerly=true"),
    "dynamic": Change(config=STATIC, reason=r"dynamic True -> False"),
    "custom decomposition": Change(config=DECOMPOSED, reason=r"decompositions none -> 1"),
    "what a custom decomposition calls": edit(
        "helpers",
        "clamp_min.default(x, low)",
        "clamp_min.default(x, 1.0 * low)",
        r"decompositions ",
        base=DECOMPOSED,
    ),
}
# Those that patch a class or a module, or a setting of the process, may not share a process.
SHARED = {"call", "config", "model"}
MATTERS = {
    f"{group}: {name}": replace(change, together=group in SHARED and not change.edits)
    for group, changes in (
        ("source", SOURCE),
        ("model", MODEL),
        ("patch", PATCH),
        ("call", CALL),
        ("process", PROCESS),
        ("environment", ENVIRONMENT),
        ("config", CONFIG),
    )
    for name, change in changes.items()
}
REFUSED = {
    "global hook": Change(
        before="torch.nn.modules.module.register_module_forward_hook(lambda module, given, out: out * 2)",
        reason=r"1 global module hooks are active",
    ),
    "torch function mode": Change(
        context="both(torch.no_grad(), torch.overrides.BaseTorchFunctionMode())",
        reason=r"1 torch function modes are active",
    ),
    "another module in the place of one that is called": Change(
        build="import importlib; old = sys.modules.pop('tiny_model.deeper'); "
        "importlib.import_module('tiny_model.deeper'); old.SHIFT = 0.75",
        reason=r"shifted is of a module tiny_model.deeper whose place in sys.modules another one has taken",
    ),
}
DOES_NOT_MATTER = {
    "nothing": Change(),
    "grad mode": Change(context=GRAD),
    "comment": edit(
        "model",
        "        x = x + self.halved(x)",
        "        # half of it again\n        x = x + self.halved(x)  # so",
    ),
    "blank lines": edit("helpers", "GAIN = 1.5\n", "\n\n\n\n\n\n\nGAIN = 1.5\n"),
    "spaces": edit("deeper", "return x + SHIFT", "return (x   +   SHIFT)"),
    "annotation": edit("deeper", "def shifted(x: torch.Tensor)", "def shifted(x: 'torch.Tensor')"),
    "body of a function that is not traced": edit("helpers", "x * 1000.0", "x * 2000.0"),
    "body of a method that is not traced": edit(
        "model", "x.abs().mean(-1, keepdim=True) +", "x.abs().mean(-1, keepdim=True) -"
    ),
    "another function in a traced module": edit(
        "deeper", "def untraced", "def fresh(x: int) -> int:\n    return x\n\n\ndef untraced"
    ),
    "constant that is not read": edit("deeper", "SHIFT = 0.25\n", "SHIFT = 0.25\nUNREAD = 7\n"),
    "renamed file that is not traced": Change(files={"notes_b.py": "NOTE = 2\n"}),
    "unrelated files": Change(
        files={"readme.txt": "text", "data.bin": "data", "other.py": "import tiny_model\n"}
    ),
    "another working directory": Change(elsewhere=True),
    "host name": Change(
        before="import platform, socket; socket.gethostname = platform.node = lambda: 'elsewhere'"
    ),
    "home": Change(before="os.environ['HOME'] = '/nonexistent'"),
    "user": Change(before="os.environ.update(USER='somebody', LOGNAME='somebody')"),
    "port and address": Change(before="os.environ.update(MASTER_PORT='29777', MASTER_ADDR='10.1.2.3')"),
    "device index": Change(
        before="os.environ.update(CUDA_VISIBLE_DEVICES='3', ASCEND_RT_VISIBLE_DEVICES='5', LOCAL_RANK='3')"
    ),
    "hash seed": Change(environment={"PYTHONHASHSEED": "4242"}),
    "number of threads": Change(environment={"OMP_NUM_THREADS": "2"}),
    "time zone and language": Change(environment={"TZ": "Asia/Tokyo", "LC_ALL": "C"}),
    "umask": Change(before="os.umask(0o027)"),
    "checkpoint": Change(
        build="torch.manual_seed(99)\nfor p in model.parameters(): torch.nn.init.normal_(p)"
    ),
    "content of a buffer": Change(build="model.blocks[0].attention.cache.fill_(1.5)"),
    "attribute that is not read": Change(build="model.unread = 5; model.blocks[0].note = 'x'"),
    "default device that is the same": Change(before="torch.set_default_device('cpu')"),
    "seed": Change(build="torch.manual_seed(12345)"),
    "more rows": Change(call="args[0] = definition.batch(rows=7)"),
    "integer": Change(call="kwargs['offset'] = 6"),
    "default given explicitly": Change(call="kwargs['gain'] = 1.0; kwargs['flip'] = False; args.append(3)"),
    "values": Change(call="batch.tokens.mul_(-3.0)"),
    "order of options": Change(
        base="config.debug.aclgraph.clone_input = False\nconfig.debug.run_eagerly = True",
        config="from warmrank import CompilerConfig\nconfig = CompilerConfig()\n"
        "config.debug.run_eagerly = True\nconfig.debug.aclgraph.clone_input = False",
    ),
    "order of a dict of options": Change(
        base="ops = torch.ops.aten\n"
        "f, g = (lambda x: -1 * x), (lambda x: x.sigmoid())\n"
        "options['custom_decompositions'] = {ops.neg.default: f, ops.silu.default: g}",
        config="options['custom_decompositions'] = {ops.silu.default: g, ops.neg.default: f}",
    ),
}
