"""One model that reads all kinds of state, for `tests.fuzz.parts.stale`."""

from __future__ import annotations

from tests.fuzz.program import HELPER, Part, Slots

_CONF = (
    "\n" * (HELPER.count("\n") + 1)
    + """\
def curved(x):
    return x - x.sin() * 0.25
SHIFT = 0.25
def shifted(x):
    return x + SHIFT
def untraced(x):
    return x - 100.0
"""
)
HELPERS = """\
def curved(x):
    return x - x.sin() * 0.25
GAIN, STEPS, TABLE = 1.5, [1.0, 0.5], {'low': 0.5, 'high': 2.0}
class Mode(enum.Enum):
    SOFT = 0.5
    HARD = 4.0
class Pair(typing.NamedTuple):
    left: float
    right: float
class Limits:
    LOW = -3.0
    HIGH = 3.0
class Tight(Limits):
    pass
@dataclasses.dataclass
class Options:
    mode: Mode = Mode.SOFT
    scale: float = 2.0
    limits: type = Tight
    pair: Pair = Pair(left=1.0, right=-2.0)
def mixed(x, amount=0.5):
    return conf.shifted(x) * amount * GAIN
def unmixed(x, amount=0.5):
    return conf.shifted(x) * amount + GAIN
def scaler(factor):
    def scale(x):
        return x * factor
    return scale
def times(factor):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(x):
            return function(x) * factor
        return wrapper
    return decorate
@times(0.75)
def decorated(x):
    return torch.tanh(x)
def loud(method):
    @functools.wraps(method)
    def wrapper(self, x):
        return method(self, x) * 2.0
    return wrapper
def at_least(x, low):
    return torch.ops.aten.clamp_min.default(x, low)
def clamp_low(x, low, high):
    return torch.ops.aten.clamp_max.default(at_least(x, low / 8.0), high)
def clamp_high(x, low, high):
    return torch.ops.aten.clamp_max.default(x, high / 8.0)
def bounded(limit):
    def post_pass(graph_module, *_):
        for node in graph_module.graph.nodes:
            if node.target is torch.ops.aten.clamp.default:
                node.args = (node.args[0], -limit, limit)
    return post_pass
def searched(x):
    return torch.ops.aten.sigmoid.default(x)
def replaced(x):
    return torch.ops.aten.tanh.default(x)
def replaced_otherwise(x):
    return torch.ops.aten.relu.default(x)
def without_bias(self, x):
    return x @ self.weight.t()
def largest_spread(self, x):
    return x.abs().amax(-1, keepdim=True)
"""
_OPS = """\
WIDTH = 4
def blend(x):
    return x * 0.75 + 0.5
def twist(x):
    return x.flip(-1).contiguous()
def cut(x):
    return x[:, :WIDTH].contiguous()
OPS = torch.library.Library('launched', 'DEF')
OPS.define('blend(Tensor x) -> Tensor')
OPS.impl('blend', blend, 'CompositeImplicitAutograd')
OPS.define('cut(Tensor x) -> Tensor')
OPS.impl('cut', cut, 'CPU')
OPS.impl('cut', cut, 'Meta')
OPS.define('twist(Tensor x) -> Tensor', tags=torch.Tag.needs_fixed_stride_order)
OPS.impl('twist', twist, 'CPU')
OPS.impl('twist', torch.empty_like, 'Meta')
"""
_TOP = """\
from fuzzed.helper import Options, mixed, scaler
OFFSET = 0.0625
NEWER = False  # stands for a model that chooses its kernels by what is installed
BLOCKS = {'number': 16}
LINE = torch.linspace(-1.0, 1.0, 8)
@dataclasses.dataclass
class Batch:
    positions: torch.Tensor
    mask: typing.Any = None
    temperature: float = 1.0
    note: str = 'plain'
@dataclasses.dataclass
class OtherBatch(Batch):
    pass
def batched(x, kind=Batch, **more):
    return kind(torch.arange(len(x)) % 16, **more)
class Norm(nn.Module):
    EPSILON = 1e-5
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, width))
    def spread(self, x):
        return x.pow(2).mean(-1, keepdim=True)
    def forward(self, x):
        return x * torch.rsqrt(self.spread(x) + self.EPSILON) * self.weight
class AbsoluteNorm(Norm):
    def forward(self, x):
        return x / (x.abs().mean(-1, keepdim=True) + self.EPSILON) * self.weight
class BlockNorm(Norm):
    pass
class Gate(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x)
class OtherGate(nn.Module):
    def _get_name(self):
        return 'Gate'
    def forward(self, x):
        return torch.tanh(x)
class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.project = nn.Linear(width, width)
        self.register_buffer('cache', torch.zeros(16, width))
    def forward(self, x, positions):
        self.cache[positions] = self.project(x.to(self.project.weight.dtype)).to(self.cache.dtype)
        return torch.softmax(x.to(self.cache.dtype) @ self.cache.t(), dim=-1) @ self.cache
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = BlockNorm(width)
        self.attention = Attention(width)
        self.activation = functools.partial(F.leaky_relu, negative_slope=0.1)
        self.lifted = lambda x: torch.sigmoid(x) * 2.0
    @property
    def ratio(self):
        return 1.0 / 3.0
    @staticmethod
    def halved(x):
        return x * 0.5
    def forward(self, x, positions):
        x = x + self.attention(self.norm(x), positions) * self.ratio
        x = x + self.halved(x)
        if self.training:
            x = x * 1.25
        return self.lifted(self.activation(x))
"""
_INIT = """\
self.settings = Options()
self.blocks = nn.ModuleList(Block(8) for _ in range(1))
self.norm = Norm(8)
self.gate = Gate()
self.head = nn.Linear(8, 8)
self.register_buffer('offset', torch.linspace(0.0, 1.0, 8))
self.register_buffer('seen', torch.zeros(8))
self.scale = scaler(1.25)
self.residual = 0.5
self.reversed = False
self.numbers = [1.0, 2.0]
"""
# Nothing in it saturates, so that every change shows in the result.
_BODY = """\
y = mixed(self.scale(y)) + shift - 3
for index, block in enumerate(self.blocks):
    y = block(y, batch.positions) + OFFSET * (index + 1)
y = y.clamp(self.settings.limits.LOW, self.settings.limits.HIGH) * self.settings.mode.value
y = y * self.settings.pair.left + self.settings.pair.right * self.settings.scale
for part in parts:
    y = y + part
for number in [*self.numbers, *steps]:
    y = y * number
y = helper.decorated(helper.curved(conf.curved(y)) / 8) * helper.TABLE['low'] + helper.STEPS[1]
y = y - LINE if self.reversed else y + LINE
if batch.mask is not None:
    y = y * batch.mask
y = self.norm(y) + self.residual * y
y = self.gate(self.head(y.to(self.head.weight.dtype))) * gain / batch.temperature + self.offset
y = y * 3.0 if y.shape[0] > 16 else y
y = y * 1.5 if NEWER else y
y = y * 0.8 if os.environ.get('FUZZ_SWITCH') == 'on' else y
y = torch.ops.launched.twist(torch.ops.launched.blend(y))
part = torch.ops.launched.cut(y)
y = y + part.sum(-1, keepdim=True) / part.shape[-1] + BLOCKS['number'] / 16 + torch.full((8,), 0.1)
y = y.flip(-1) if flip or batch.note == 'flipped' else y
cache.add_(y)
self.seen.add_(y.sum(0))
y = y @ torch.ones(8, 8, dtype=y.dtype).tril() + y
"""
CALL = "batched(x), [torch.ones(len(x), 8), torch.full((len(x), 8), 0.5)], [1.0, 2.0], torch.zeros(len(x), 8)"
SLOTS: Slots = {
    "conf": _CONF, "helper": HELPERS, "ops": _OPS, "top": _TOP, "init": _INIT, "body": _BODY,
    "params": "batch, parts, steps, cache, shift=3, *, gain=1.0, flip=False", "args": f"{CALL}, 3",
    "kwargs": "gain=1.0, flip=False", "configure": "", "after": "m.eval()",
}  # fmt: skip
X = "torch.linspace(-2.0, 2.0, 8 * {n}).reshape({n}, 8) + call"
MODEL = Part(name="stale", slots=SLOTS)
