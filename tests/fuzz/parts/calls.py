"""Programs whose calls differ: which of them compile, run something loaded, or are refused.

`tests.integration.test_fuzz` runs them cold, then warm with each call captured ahead; and twice cold with other
hash seeds, which must make equal artifacts.
"""

# ruff: noqa: E501 - a program's text in one line reads as a table

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.fuzz.program import Part, Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """A program, and the outcome of each of its calls in the first process; or the error that refuses it."""

    program: Program
    cold: tuple[str, ...]
    refused: str = ""


_PROGRAM = ("context", "tolerance", "dynamic")
ONE, TWO = "[a(N(3, 4))]", "[a(N(3, 4)), a(N(5, 4))]"
_POSITIONS = "[a(N(3, 4), N(3, 4, seed=1), torch.tensor(at)) for at in (2, 0, -1)]"
THREE = "[a(N(3, 4, seed=seed)) for seed in range(3)]"


def _rows(*sizes: int) -> str:
    return f"[a(N(n, 4)) for n in {sizes}]"


def _row(cold: str, calls: str, body: str, **more: Any) -> Called:
    """A program with these outcomes, arguments and body; ``more`` are slots, and fields of the program."""
    fields = {name: more.pop(name) for name in _PROGRAM if name in more}
    part = Part(name="calls", slots={"body": body, **more})
    return Called(program=Program(parts=(part,), calls=calls, **fields), cold=tuple(cold.split()))


def _refused(error: str, body: str, **slots: str) -> Called:
    program = Program(parts=(Part(name="calls", slots={"body": body, **slots}),), calls=ONE)
    return Called(program=program, cold=(), refused=error)


_NUMBERS = "[a(N(n, 4), n, f) for n, f in ((3, 1.5), (4, 2.25), (3, 1.5))]"
_LINEAR = "self.layer = nn.Linear(4, 4)"
_TYPES = """\
class Mode(enum.Enum):
    FAST = 1
    SLOW = 3
@dataclasses.dataclass(frozen=True)
class Settings:
    scale: float = 1.5
    mode: Mode = Mode.FAST
    sizes: tuple = (1, 2)
@dataclasses.dataclass
class Inner:
    x: torch.Tensor
    factor: float = 2.0
@dataclasses.dataclass
class Outer:
    inner: Inner
    count: int
    names: list = dataclasses.field(default_factory=list)
@dataclasses.dataclass
class Output:
    value: torch.Tensor
    extra: typing.Any = None
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Strict:
    x: torch.Tensor
    scale: float = 2.0
    shape: tuple = (1, 2)
class Pair(typing.NamedTuple):
    a: torch.Tensor
    b: int
"""
_BASE = "class Base(nn.Module):\n    def helped(self, x):\n        return x + 1\n    def forward(self, x):\n        return self.helped(x) * 2"
_SCALARS = "[a(N(3, 4), *v) for v in ((True, 3, 0.5, 'relu'), (False, 3, 0.5, 'relu'), (True, 4, 0.5, 'relu'), (True, 3, 0.25, 'relu'), (True, 3, 0.5, 'gelu'), (True, -2, 0.5, 'relu'), (True, 0, 0.5, 'relu'), (1, 3, 0.5, 'relu'))]"
VALUES = {
    "overridden method that it calls": _row("compiled", ONE, "y = self.helped(x) * 2", top=_BASE, base="Base", fields="def helped(self, x):\n    return super().helped(x) * 5"),
    "overridden method itself": _row("compiled", ONE, "y = super().forward(x) * 5", top=_BASE, base="Base"),
    "made at first use": _row("compiled compiled ran", "[a(N(3, 4)) for _ in range(3)]", "try:\n    held = self.held\nexcept AttributeError:\n    held = self.held = torch.ones(4)\ny = x * held"),
    "under default device": _row("compiled ran", TWO, "y = x * torch.full((4,), 2.0)", context="torch.no_grad(), torch.device('cpu')"),
    "plain state": _row(
        "compiled", ONE,
        "y = x[self.part] * self.magic + self.named['k'] + self.nested[2][0] + len(self.members)\n"
        "y = y + self.ordered['a'] + (1 if 2 in self.members else 0) + self.settings.sizes[1]\n"
        "y = y * self.settings.scale if self.settings.mode is Mode.FAST else y",
        top=_TYPES, fields="def __getattr__(self, name):\n    return 5.0 if name == 'magic' else super().__getattr__(name)",
        init="self.named, self.nested, self.members, self.part = {'k': 3.0}, (1, 2, (3,)), {1, 2}, slice(0, 2)\nself.ordered, self.settings = collections.OrderedDict(a=1), Settings()",
    ),
    "comprehensions": _row(
        "compiled", ONE,
        "several = [x * index for index in range(3)]\nnamed = dict(zip('abc', several))\n"
        "return torch.stack([named[key] for key in sorted(named)]), torch.cat(several), functools.reduce(lambda p, q: p + q, several)",
    ),
    "attention": _row(
        "compiled", ONE,
        "query = self.query(x).view(1, 1, x.shape[0], 4)\n"
        "return F.scaled_dot_product_attention(query, query, query, is_causal=True), self.attention(x[None], x[None], x[None])[0], F.layer_norm(x, (4,))",
        init="self.query, self.attention = nn.Linear(4, 4), nn.MultiheadAttention(4, 2, batch_first=True)\nself.eval()", tolerance=1e-6,
    ),
    "convolution": _row("compiled compiled", "[a(N(1, 2, 8, 8)), a(N(2, 2, 8, 8))]", "y = F.max_pool2d(self.norm(self.layer(x)), 2)", init="self.layer, self.norm = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)\nself.eval()", tolerance=1e-6),
    "autocast within": _row(
        "compiled ran", TWO,
        "with torch.no_grad():\n    doubled = x * 2\nwith torch.autocast('cpu', dtype=torch.bfloat16):\n    low = x @ x.t()\n"
        "with torch.autocast('cpu', enabled=False):\n    high = x @ x.t()\nreturn doubled, low, high", tolerance=1e-2,
    ),
    "under inference mode": _row("compiled ran", TWO, "y = self.layer(x).relu_()", init=_LINEAR, context="torch.inference_mode()"),
    "with gradients on": _row("compiled ran", TWO, "y = self.layer(x)\nself.last.copy_(y.sum(0))", init=f"{_LINEAR}\nself.last = nn.Buffer(torch.zeros(4))", context="torch.enable_grad()"),
    "under autocast": _row("compiled ran", TWO, "y = self.layer(x)", init=_LINEAR, context="torch.autocast('cpu', dtype=torch.bfloat16), torch.no_grad()", tolerance=1e-2),
    "nested dataclass": _row("compiled ran compiled", "[a(Outer(Inner(N(3, 4)), 2)), a(Outer(Inner(N(6, 4)), 5)), a(Outer(Inner(N(6, 4), 3.0), 2))]", "y = x.inner.x * x.inner.factor + x.count", top=_TYPES),
    "strict dataclass": _row("compiled ran compiled", "[a(Strict(x=N(3, 4))), a(Strict(x=N(6, 4))), a(Strict(x=N(3, 4), scale=3.0))]", "y = Strict(x=x.x * x.scale, shape=(x.x.shape[0], x.shape[1]))", top=_TYPES),
    "named tuple as an input": _row("compiled ran", "[a(Pair(N(3, 4), 2)), a(Pair(N(3, 4), 5))]", "y = x.a * x.b", top=_TYPES),
    "keyword only": _row("compiled compiled ran", "[a(N(3, 4), scale=scale) for scale in (2.0, 3.0, 2.0)]", "y = x * scale if bias is None else x * scale + bias", params="*, scale=1.0, bias=None"),
    "any arguments": _row(
        "compiled compiled compiled", "[a(N(3, 4), N(3, 4, seed=1), k=N(3, 4, seed=2)), a(N(3, 4)), a(N(3, 4), N(3, 4, seed=1), other=N(3, 4))]",
        "y = x * 0.5\nfor index, one in enumerate(several):\n    y = y + one * index\nfor one in named.values():\n    y = y - one", params="*several, **named",
    ),
    "names of builtins": _row("compiled ran", "[a(N(3, 4), 2, N(3, 4)), a(N(3, 4), len=N(3, 4), type=3)]", "y = x * type + len", params="type, len"),
    "dict as an input": _row(
        "compiled ran compiled", "[a({'a': N(3, 4), 'b': N(3, 4, seed=1)}), a({'a': N(7, 4), 'b': N(7, 4, seed=1)}), a({'b': N(3, 4), 'a': N(3, 4, seed=1)})]",
        "y = x['a'] * 0\nfor one in x.values():\n    y = y * 2 + one\nreturn {'out': y, 'size': len(x)}",
    ),
    "tuple as an input": _row("compiled ran compiled", "[a((N(3, 4), (N(3, 4, seed=1), 2))), a((N(3, 4), (N(3, 4, seed=1), 4))), a([N(3, 4), (N(3, 4, seed=1), 2)])]", "y = x[0] + x[1][0] * x[1][1]"),
    "None as an input": _row("compiled compiled ran", "[a(N(3, 4), None), a(N(3, 4), N(3, 4)), a(N(5, 4), None)]", "y = x * 2 if other is None else x + other", params="other"),
    "scalars": _row("compiled compiled ran compiled compiled ran ran compiled", _SCALARS, "y = getattr(F, name)(x + count if flag else x - count) * factor", params="flag, count, factor, name", tolerance=1e-6),
    "enum as an input": _row("compiled compiled", "[a(N(3, 4), Mode.FAST), a(N(3, 4), Mode.SLOW)]", "y = x * mode.value", params="mode", top=_TYPES),
    "dtype as an input": _row("compiled compiled", "[a(N(3, 4), torch.float64), a(N(3, 4), torch.float16)]", "y = x.to(dtype)", params="dtype"),
    "constant among numbers": _row("compiled compiled ran", _NUMBERS, "return 3 in (n,), 3 in [n, None], 4 in x.shape, (3, 4) in [x.shape], 3.0 in x.shape, True in [n > 2], 1.5 in (f, n), 3 in {'a': n}.values(), ('a', 3) in {'a': n}.items(), math.nan in [math.nan, n], [i for i in range(6) if i in (n, 4)]", params="n, f"),
    "list that is searched and changed": _row("compiled compiled", TWO, "if 5 in self.l:\n    self.l.remove(5)\nself.l.append(3 in self.l)\ny = x * len(self.l)", init="self.l = [1, 5, 4]"),
    "texts of numbers": _row("compiled compiled ran", _NUMBERS, "seen = {f'{n}': 1}\nreturn seen, f'{n}', f'{n:>5}', f'{n // 2:3}', f'{x.numel():6}', f'{n > 3:>6}', f'{f:.3f}', f'{n}' * 2, {'  3': 7}.get(f'{n:>3}'), {'  3': 7}.get('{:>3}'.format(n)), format(n, '>4'), format(f, '.2f'), format(n), '{:>{}}'.format(n, n * 2), f'{(n, [n])}'", params="n, f"),
    "numbers that are one": _row("compiled compiled ran", _NUMBERS, "three = 3\nreturn n is three, x.shape[0] is n, len(x) is n, n + 0 is n, n is not three, n is None, n is True", params="n, f"),
    "number beside None": _row("compiled ran ran", "[a(N(n, 4), n) for n in (5, 6, 7)]", "y = x * n if n is not None and x.shape[0] is not True else x", params="n"),
    "numbers rounded to digits": _row("compiled compiled ran", _NUMBERS, "y = x * round(n * 17, -2)\nreturn y, round(n * 9, -1), round(n), round(n, 1)", params="n, f"),
    "error that a number makes": _row("compiled compiled ran", "[a(N(3, 4), n) for n in (3, 0, 4)]", "try:\n    six = 6 // n\nexcept ZeroDivisionError:\n    six = -1\ntry:\n    root = math.sqrt(n - 1)\nexcept ValueError:\n    root = -1.0\ny = x * six + root", params="n", tolerance=1e-6),
    "error that a number makes, unused": _row("compiled compiled", "[a(N(3, 4), n) for n in (3, 0)]", "try:\n    math.asin(n)\n    y = x * 2\nexcept ValueError:\n    y = x * 3", params="n"),
    "texts of errors": _row("compiled compiled", "[a(N(3, 4), n) for n in (3, 4)]", "seen = []\nfor kind in (KeyError, ValueError, Told, Missing):\n    try:\n        raise kind(n * 2)\n    except (ValueError, LookupError) as error:\n        seen.append((str(error), f'{error}', '%s' % error))\ntry:\n    raise ValueError(n * 2)\nexcept ValueError as error:\n    seen.append(repr(error))\nreturn seen, x", top="class Told(ValueError):\n    def __str__(self): return 'told'\nclass Missing(KeyError):\n    def __init__(self, name):\n        super().__init__(f'{name} is missing')\n        self.name = name", params="n"),
    "error of a size's place": _row("compiled compiled ran", "[a(N(n, 4)) for n in (3, 1, 3)]", "try:\n    size = x.shape[x.shape[0]]\nexcept IndexError as error:\n    size = len(str(error))\ny = x * size"),
    "error of a dimension": _row("compiled compiled", "[a(N(3, 4)[i]) for i in (slice(2), 0)]", "try:\n    y = x * x.size(1)\nexcept IndexError:\n    y = x * 9\nreturn y"),
    "number that has no symbol, within try": _row("compiled compiled", "[a(N(3, 4), n) for n in (3, 7)]", "try:\n    y = x * divmod(n, 3)[0] + len('%d' % n)\nexcept TypeError:\n    y = x", params="n"),
    "number beside objects": _row("compiled compiled", "[a(N(3, 4), n) for n in (5, 2)]", "return n == Level.LOW, n in [Level.LOW], n == self.tag, n != self.tag, n == 2 + 0j, x", top="class Level(enum.IntEnum):\n    LOW = 2\nclass Tag:\n    def __eq__(self, other): return other == 2", init="self.tag = Tag()", params="n"),
    "rounded floats of numbers": _row("compiled compiled", "[a(N(35, 4), n) for n in (3, 4)]", "return n // 0.1, x.shape[0] // 0.1, n * 1.0 % math.inf, (n / 2 % 3).is_integer(), x[: int(n // 0.1)]", params="n"),
    "iterator that is searched": _row("compiled ran", "[a(N(3, 4), n) for n in (3, 7)]", "it = iter([1, n, 3, 4])\nreturn n in it, [*it], x", params="n"),
    "texts of lists that change": _row("compiled compiled", "[a(N(3, 4), n) for n in (3, 7)]", "a, b = [1, n], {'a': n}\ntexts = f'{a}', '{}'.format(b)\na.append(9)\nb['b'] = 2\nreturn texts, f'{a}', x", params="n"),
    "bools beside numbers": _row("compiled compiled ran", _NUMBERS, "return (2 if (n - 2) == True else 3), True in [n - 2], (n > 2) == 1, True + n, n**True", params="n, f"),
    "list of integers": _row("compiled compiled ran", "[a(N(3, 4), [1, 2]), a(N(3, 4), [1, 2, 3]), a(N(3, 4), [1, 5])]", "y = x * sum(given)", params="given"),
    "list or not": _row("compiled compiled compiled compiled", "(lambda x: [a(x, [x + 1, x + 2]), a(x, [x + 1, x + 2, x + 3]), a(x, 5), a(x, x + 1)])(N(3, 4))", "y = x + len(given) + given[0] if isinstance(given, list) else x * given", params="given"),
    "other memory behind an input": _row("compiled ran ran", "[a(N(3, 4), N(3, 4, seed=seed)) for seed in range(3)]", "x.data = other * 2\nx.add_(1)\nself.w.data = self.w.data + x\ny = x * self.w", params="other", init="self.w = nn.Parameter(torch.ones(3, 4))"),
    "writes at a position": _row("compiled ran ran", _POSITIONS, "cache[:, at] = x[:, 0]\ncache[at - 1, 1:] = 2\ncache[..., None, at] = x.mean()\ny = x + cache", params="cache, at"),
    "writes at a position beside tensors": _row("compiled ran ran", "[a(N(3, 4), N(3, 5, 4, seed=1), torch.tensor(at), torch.tensor([2, 0])) for at in (2, 0, -1)]", "cache[rows, at] = x[:2]\ncache[at, :, rows] = x[0, 0]\ncache[:, at, rows, None] = x[:, 1:3, None]\ncache[:, [1, 3], at] += 1\ncache[x[:, 0] > 0, at, 1:] = 2\ny = x + cache.sum(1)", params="cache, at, rows"),
    "reads at a position beside tensors": _row("compiled ran ran", "[a(N(3, 4), N(3, 5, 4, seed=1), torch.tensor(at), torch.tensor([2, 0])) for at in (2, 0, -1)]", "return cache[rows, at], cache[at, :, rows], cache[:, at, rows[:, None], None], cache[..., [1, 3], at], cache[rows, None, at, rows]", params="cache, at, rows"),
    "reads at a position": _row("compiled ran compiled", _POSITIONS, "seen = cache[at]\ncache.add_(1)\nbest = x.sum(1).argmax()\nreturn seen, x[:, at] * 2, x[best, None], cache[1:, at.item()], x[best.item() - 1, 1:]", params="cache, at"),
    "writes at a number": _row("compiled ran ran", "[a(N(3, 4), N(3, 5, 4, seed=1), at) for at in (2, 1, 3)]", "cache[:, at] = x\ncache[0, at - 1, 1:] = 2\ncache[..., None, at, :] = x[None, :, None]\ncache[:, at, at] += 1\ny = x + cache.sum(1)", params="cache, at"),
    "reads at a number": _row("compiled ran ran", "[a(N(3, 4), N(3, 5, 4, seed=1), at) for at in (2, 1, 3)]", "seen = cache[:, at]\ncache.add_(1)\nreturn seen, cache[[0, 2], at, None], cache[..., at - 1, ::2], cache[x[:, 0] * 0 > -1, -1 - at], x[:, at]", params="cache, at"),
    "variables of old": _row("compiled ran", TWO, "y = Variable(x[:, :2]) + Variable(torch.ones(2), requires_grad=False)\ny = y * 2 if isinstance(x, Variable) and not isinstance(3, (Variable, str)) else y", top="from torch.autograd import Variable"),
    "tensor for a number": _row("compiled ran", "[a(N(3, 4), torch.tensor(2)), a(N(3, 4), torch.tensor(3))]", "y = x * count", params="count"),
    "loop over an integer": _row("compiled compiled", "[a(N(3, 4), 3), a(N(3, 4), 4)]", "for index in range(count):\n    y = y + index", params="count"),
    "asks for the type": _row("compiled ran", TWO, "y = x * 2 if type(x) is torch.Tensor else x"),
    "branch on a size": _row("compiled compiled ran", _rows(3, 16, 2), "y = x * 2 if x.shape[0] > 8 else x * 3"),
    "asserted sizes": _row("compiled ran", TWO, "num, width = x.shape\ntorch._assert(num < self.most, 'rows')\ntorch._assert(width == 4, 'four columns')", init="self.most = 9"),
    # In the first call both sizes are 4, which binds neither to the other.
    "even sizes": _row("compiled compiled ran ran", _rows(4, 5, 6, 8), "y = x.view(x.shape[0] // 2, 2, 4).sum(1) if x.shape[0] % 2 == 0 else x.sum(0)"),
    "special sizes": _row("compiled compiled compiled ran", _rows(3, 1, 0, 2), "y = x + torch.ones(1, 4)"),
    "fixed sizes": _row("compiled compiled ran", _rows(3, 5, 3), "y = x * x.shape[0]", dynamic=False),
    "any sizes": _row("compiled ran ran", "[a(N(3, 4)), a(N(4, 3)), a(N(4, 4))]", "y = x.reshape(-1) * 2"),
    "tensor constants": _row("compiled ran", TWO, "y = x * torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.arange(4) + torch.zeros(x.shape[0], 1)"),
    "returns a dataclass": _row("compiled ran", TWO, "return Output(x * 2, extra=x.shape), Output(x + Inner(x).factor)", top=_TYPES),
    "returns a named tuple": _row("compiled ran", TWO, "return Pair(x * 2, x.shape[0])", top=_TYPES),
    "returns many things": _row("compiled ran", TWO, "nested = (x + 1, [x * 2, None, 'k', 1.5, True])\nreturn {'size': x.shape, 'count': x.numel(), 'nested': nested}, x.dtype, x.size(0) * 2, x.device"),
    "returns torch's tuples": _row("compiled ran", TWO, "return torch.max(x, dim=0), x.sort(1)"),
    "complex numbers": _row("compiled compiled", "[a(N(3, 4, dtype=torch.complex64)), a(N(3, 4, dtype=torch.complex64).conj())]", "y = torch.view_as_real(x * 2)"),
}  # fmt: skip

_LEAF = "class Leaf:\n    def __init__(self, value):\n        self.value = value\ntorch.utils._pytree.register_pytree_node(Leaf, lambda leaf: ([leaf.value], None), lambda values, _: Leaf(*values))"
_WEIGHT = "class Weight(nn.Parameter):\n    output_dim = 0\nclass Kind(enum.StrEnum):\n    RELU = 'relu'"
_LIBRARY = {
    "made of sizes": _row(
        "compiled ran compiled", _rows(8, 6, 9),
        "num, width = x.shape\nx = x / math.sqrt(width) * round(num / 2) + math.log2(num) + math.ceil(num / 3) + num**0.5\n"
        "x = x + num % 3 + abs(num - width) + min(num, width) + float(num)\nif math.sqrt(num) >= 3 or num & 1:\n    x = x * 3\n"
        "return x[: num // 2], math.sqrt(num), num / 2, num > 7, torch.arange(num)",
    ),
    # Dynamo has no symbols for what this makes of a size.
    "no symbol": _row("compiled compiled", TWO, "quotient, rest = divmod(x.shape[0], 2)\ny = x * quotient + rest + len(str(x.shape[0])) + math.gcd(x.shape[0], 4)"),
    "NumPy": _row(
        "compiled compiled", "[a(N(3, 4), np.ones(4, np.float32)), a(N(3, 4), np.arange(4.0))]",
        "y = (x * FACTOR * (FACTOR * np.float32(3)) + self.count if self.flag else x).repeat(self.count, 1)\ny = y + torch.from_numpy(self.table) + torch.from_numpy(given)",
        params="given", top="FACTOR = np.float32(1.1)", init="self.table, self.flag, self.count = np.arange(4, dtype=np.float32), np.bool_(True), np.int64(2)",
    ),
    "NumPy results": _row("compiled ran", TWO, "y = x * 2\nreturn y, FACTOR * 2, (FACTOR, 3), x.numpy() + 1, np.stack([x.numpy(), x.numpy()])", top="FACTOR = np.float32(1.1)"),
    "pytree": _row("compiled", ONE, "y = torch.utils._pytree.tree_map(torch.neg, {'leaf': Leaf(x)})['leaf'].value", top=f"import torch.utils._pytree\n{_LEAF}"),
    "device with an index": _row("compiled", ONE, "return x.to(self.device).add_(1), x * 2", init="self.device = torch.device('cpu', 0)"),
    "derived numbers": _row(
        "compiled", ONE, "y = x * self.count + self.ratio * self.number\ny = F.relu(y) if self.name == 'relu' and self.kind == 'relu' else y",
        top=_WEIGHT, init="self.count, self.ratio, self.name, self.kind, self.number = K.Int(3), K.Float(0.5), K.Str('relu'), Kind.RELU, np.int64(2)",
    ),
    "unusual keys": _row(
        "compiled", ONE,
        "y = x * self.by_dtype[x.dtype] + self.by_device[x.device]\ny = y + self.by_object[Weight] + self.by_object[F.relu] + self.by_object[1, 'a'] + self.by_object[None]",
        top=_WEIGHT,
        init="self.by_dtype, self.by_device = {torch.float32: 2.0, torch.float16: 3.0}, {torch.device('cpu'): 1.0}\nself.by_object = {Kind.RELU: 1.0, Weight: 2.0, F.relu: 3.0, (1, 'a'): 4.0, None: 5.0}",
    ),
    "objects of the library": _row(
        "compiled", ONE, "if PATTERN.match('layer12'):\n    y = y * SECOND((2.0, 5.0))\ny = y + self.get(self)['a'] + GAIN.get()",
        top="PATTERN, SECOND = re.compile('layer[0-9]+'), operator.itemgetter(1)\nGAIN = contextvars.ContextVar('GAIN', default=2.0)",
        init="self.scales, self.get = {'a': 3.0}, operator.attrgetter('scales')",
    ),
    # The first call evaluates it, and stores it in the module.
    "cached property": _row("compiled compiled", "[a(N(3, 4)), a(N(3, 4))]", "y = x * self.scale", fields="@functools.cached_property\ndef scale(self):\n    return 2.5"),
    "weight subclass": _row("compiled", ONE, "y = F.linear(x, self.weight)", top=_WEIGHT, init="self.weight, self.output_dim = Weight(K.numbers(4, 4)), 2"),
    "graph module": _row("compiled", ONE, "y = self.traced(x) + 1", top="class Traced(nn.Module):\n    def forward(self, x):\n        return x.relu() * 2", init="self.traced = torch.fx.symbolic_trace(Traced())"),
    # Captured, the operators within aten.gru run one by one, which rounds otherwise in the last bit.
    "recurrent": _row("compiled", "[a(N(2, 3, 4))]", "return self.gru(x)", init="self.gru = nn.GRU(4, 3, batch_first=True, bidirectional=True)", dynamic=False, tolerance=1e-6),
    "telling": _row("compiled", ONE, "LOG.debug('x %s', x, extra={'shape': x.shape})\nlogging.getLogger(__name__).debug('once more')\ny = x * 3 if LOG.isEnabledFor(logging.NOTSET + 1) else x", top="import logging\nLOG = logging.getLogger(__name__)"),
    "generators": _row("compiled", ONE, "y = torch.cat([part * 2 for part in self.parts(x)])", fields="def parts(self, x):\n    for step in range(3):\n        yield x + step"),
}  # fmt: skip

_DISTINCT_THEN_SAME = "(lambda x: [a(N(3, 4), N(3, 4, seed=1)), a(x, x)])(N(3, 4))"
_VIEWS = "(lambda held: [a(held[0:2], N(2, 4, seed=1)), a(held[0:2], held[1:3]), a(held[0:2], N(2, 4, seed=2)), a(held[0:2], held[2:4])])(N(8, 4))"
_TURNS = "(lambda *states: [a(N(3, 4, seed=call), states[call % 2]) for call in range(6)])({'h': N(3, 4)}, {'h': N(3, 4, seed=9)})"
_SLIDING = "N(12).as_strided((3, 4), (2, 1))"
_MEMORY = {
    "KV cache": _row("compiled compiled ran", _rows(1, 2, 3), "self.cache[: x.shape[0]] = self.layer(x)\ny = self.cache.sum(0) + x", init=f"self.cache = nn.Buffer(torch.zeros(8, 4))\n{_LINEAR}"),
    "plain tensor as an attribute": _row("compiled ran ran", THREE, "self.total.add_(x)\ny = self.total * 2", init="self.total = torch.zeros(3, 4)"),
    "replaces a buffer": _row("compiled ran ran", THREE, "self.total = self.total + x.clone()\ny = self.total * 2", init="self.total = nn.Buffer(torch.zeros(3, 4))"),
    "grows a cache": _row("compiled compiled ran", THREE, "self.cache = torch.cat([self.cache, x])\ny = self.cache.sum(0)", init="self.cache = torch.zeros(0, 4)"),
    "states in turns": _row("compiled ran ran ran ran ran", _TURNS, "state['h'] = state['h'] * 0.5 + x\ny = state['h'] * 2", params="state"),
    "counts its calls": _row("compiled ran ran", THREE, "self.count += 1\ny = x * self.count", init="self.count = 0"),
    "flips a flag": _row("compiled compiled ran", THREE, "if self.begins:\n    self.begins = False\n    return x + 1\ny = x * 2", init="self.begins = True"),
    "appends to a list": _row("compiled compiled", f"{THREE}[:2]", "self.history.append(x * 2)\ny = x + len(self.history)", init="self.history = []"),
    "stores an object of its own": _row("compiled compiled", f"{THREE}[:2]", "self.kept[x.shape[1]] = Inner(x * 2)\nself.seen.append(Inner(x + 1))\ny = self.seen[0].x + self.kept[4].factor", top=_TYPES, init="self.kept, self.seen = {}, []"),
    "value of a generator": _row("compiled ran", TWO, "y = torch.cat(list(self.all(x)))", fields="def parts(self, x):\n    yield x + 1\n    return 3\ndef all(self, x):\n    count = yield from self.parts(x)\n    yield x * (count or -1)"),
    "reorders a dict": _row("compiled compiled ran", THREE, "self.kept.move_to_end(next(iter(self.kept)))\ny = x + list(self.kept.values())[0]", top="import collections", init="self.kept = collections.OrderedDict(a=1.0, b=2.0)"),
    "remembers the last": _row("compiled ran ran", THREE, "self.last = x.sum()\ny = x + 1"),
    "writes to an argument": _row("compiled", "[a(N(3, 4), Outer(Inner(N(3, 4)), 2))]", "given.inner.x = x * 2\ngiven.count = given.count + 1\ngiven.names.append('seen')\ny = x + 1", params="given", top=_TYPES),
    "writes to a namespace": _row("compiled ran", "[a(N(3, 4), types.SimpleNamespace(n=1)), a(N(5, 4), types.SimpleNamespace(n=2))]", "given.n += 1\ngiven.size = x.shape[0]\ny = x * given.n + given.size", top="import types", params="given"),
    "appends to an argument": _row("compiled compiled", "[a([N(3, 4), N(3, 4)]), a([N(3, 4)])]", "x.append(x[0] * 2)\ny = x[-1] + 1"),
    "writes to its input": _row("compiled ran", TWO, "x.mul_(2)\ny = x + 1"),
    "returns views of its input": _row("compiled ran", TWO, "return x, x.view(-1), x[0], x.t()"),
    "returns its own tensors": _row("compiled ran", TWO, "return self.weight, x * self.weight, self.weight[1:]", init="self.weight = nn.Parameter(torch.ones(4))"),
    "no operator": _row("compiled ran compiled", "[a(N(3, 4), None), a(N(5, 4), None), a(N(3, 4), N(3, 4))]", "self.seen += 1\nif b is None:\n    return x, b, x.shape\ny = x * b", params="b", init="self.seen = 0"),
    "numbers of two kinds": _row("compiled compiled", "[a(N(3, 4), 3), a(N(5, 4), 4)]", "found = min(n, 1e9), max(n, 0.5), torch.full((1,), max(n, 0.5)), (n + 1e16) - 1e16, 1 if (x.shape[0] > 1) is True else 2\nreturn found, 1 / (x * (n * -0.0)), torch.tensor(self.tenth), torch.as_tensor([self.three, self.three])", params="n", top="import numpy as np", init="self.tenth, self.three = np.float64(0.1), np.int32(3)"),
    "allowed in graph": _row("compiled ran", TWO, "y = opaque(x)", top="def opaque(x):\n    return x * 3", init="torch.compiler.allow_in_graph(opaque)"),
    "identity of inputs": _row("compiled compiled", _DISTINCT_THEN_SAME, "y = x * 5 if x is b else x + b", params="b"),
    "looks among tensors": _row("compiled ran", TWO, "found = x in [x, 1], 5 in range(3), self in (self,), [1, 2, 1].count(1)\nreturn found, x * 2"),
    "same tensor twice": _row("compiled compiled", _DISTINCT_THEN_SAME, "x.add_(1)\ny = x + b", params="b"),
    # The captured graph of the first call has a copy of ``b``, that of the second must not.
    "overlapping inputs": _row("compiled ran ran ran", _VIEWS, "x.add_(1)\ny = x * b", params="b"),
    "expanded input": _row("compiled ran compiled", "[a(N(3, 1).expand(3, 4)), a(N(5, 1).expand(5, 4)), a(N(3, 4))]", "y = x * 2"),
    "sliding input": _row("compiled compiled ran", f"[a({_SLIDING}), a(N(3, 4)), a({_SLIDING})]", "y = x * 2"),
    "slices of other buffers": _row("compiled ran ran ran", "[a(N(n, 4)[n - 4 : n - 1]) for n in (9, 12, 20)] + [a(N(2, 9, 4)[1][5:8])]", "y = x * 2", dynamic=False),
    "columns of other buffers": _row("compiled ran", "[a(N(3, 8)[:, :4]), a(N(2, 3, 9)[0][:, :4])]", "y = x.cumsum(1)"),
    "last column": _row("compiled ran ran", "[a(N(2, n)[:, -1:]) for n in (5, 6, 7)]", "y = x + 1"),
    "strides of an input": _row("compiled compiled compiled", "[a(N(4, 4)), a(N(4, 4).t()), a(N(4, 8)[:, ::2])]", "return x.stride(), x * 2"),
    "one address, two strides": _row("compiled compiled ran", "[a(HELD), a(HELD.transpose(0, 1)), a(HELD)]", "y = x.sum(0)", top="HELD = K.numbers(4, 4, 2)", configure="config.debug.aclgraph.clone_input = False"),
    "without capture": _row("compiled ran", TWO, "y = x * 2", configure="config.debug.run_eagerly = True"),
    "beyond the capture limit": _row("compiled ran ran ran", _rows(2, 3, 4, 2), "y = x * 2", configure="config.debug.aclgraph.static_capture_size_limit = 1"),
    "cloned outputs": _row("compiled ran", TWO, "return x * 2, x[0]", configure="config.debug.aclgraph.enable_output_clone = True"),
    "arguments of every kind": _row(
        "compiled ran", TWO,
        "y = x.to(torch.float64, memory_format=torch.contiguous_format)\ny = y.clamp(min=-math.inf, max=1e300).sum(dim=[0, -1], keepdim=True)\n"
        "y = (y + torch.full((2, 3), math.inf, dtype=torch.float64, device='cpu')).nan_to_num(nan=0.5)\n"
        "picked = torch.cat([x, x], 1)[:, None, ..., ::2][torch.tensor([0, 1])]\ny = y + picked.mean() + torch.zeros_like(x, layout=torch.strided)[0, 0]",
    ),
    "complex constants": _row("compiled", "[a(torch.tensor([1 + 2j, -3.5 + 0j]))]", "y = torch.stack([x * 2 + 1j, x + complex(float('nan'), -0.0), x - complex(float('inf'), 2)])"),
    "integers beside complex numbers": _row("compiled", "[a(torch.arange(6))]", "return x * 1j, (x * 1j + x).abs(), (x > 2) * 2j, x + 1"),
    # Their variants with ``out`` use it as scratch, or resize it.
    "losses": _row(
        "compiled ran ran ran", "[a(N(5, 5, seed=seed).sigmoid(), N(5, 5, seed=seed + 9).sigmoid()) for seed in range(4)]",
        "names = ('binary_cross_entropy', 'huber_loss', 'mse_loss', 'smooth_l1_loss', 'l1_loss')\n"
        "return [getattr(F, name)(x, wanted, reduction=kind) for name in names for kind in ('mean', 'sum', 'none')]", params="wanted",
    ),
    "kernels that weights with gradients select": _row("compiled ran ran", "[a(torch.arange(30.0).reshape(2, 3, 5) * 1.1) for _ in range(3)]", "y = self.projection(x.transpose(1, 2))", init="self.projection = nn.Linear(3, 5)"),
    "running statistics": _row(
        "compiled ran ran ran", "[a(N(3, 4, 6, seed=seed)) for seed in range(4)]", "y = self.other(self.norm(x))",
        init="self.norm, self.other = nn.BatchNorm1d(4), nn.InstanceNorm1d(4, track_running_stats=True)",
    ),
    "views by place in the storage": _row("compiled ran ran ran", "[a(N(32)[start : start + 16]) for start in (0, 0, 4, 8)]", "y = x.as_strided((2, 2), (2, 1), 1) + 1"),
    "inputs over one block of memory": _row(
        "compiled ran ran", "[(lambda block: a(torch.from_numpy(block[:4]), torch.from_numpy(block[2:6])))(np.arange(8.0, dtype=np.float32)) for _ in range(3)]",
        "x.add_(1)\ny = b * 2", params="b",
    ),
    "calls what exec made": _row("compiled", ONE, "y = self.made(x)", top="SCOPE: dict = {}\nexec('def made(x): return x * 2', SCOPE)", init="self.made = SCOPE['made']"),
}  # fmt: skip
_REFUSED = {
    "sets a global": _refused("NotPortable", "global CALLS\nCALLS += 1\ny = x * CALLS", top="CALLS = 0"),
    "makes a global": _refused("NotPortable", "global MADE\nMADE = 5\ny = x * MADE"),
    "breaks the graph after what has no symbol": _refused("GraphBreak", "y = x * divmod(x.shape[0], 3)[0]\ny = y if x.sum() > 0 else x"),
    "not traced into": _refused("NotPortable", "y = self.opaque(x)", top="def opaque(x):\n    return x * 3", init="self.opaque = torch._dynamo.nonstrict_trace(opaque)"),
    "version": _refused("NotPortable", "y = x * 3 if x._version > 3 else x * 2"),
    "makes a function": _refused("NotPortable", "return x * 2, lambda value: value"),
    "asks for its base": _refused("NotPortable", "y = x * 2 if x._base is None else x._base * 3"),
    "draws numbers": _refused("RandomOp", "y = x + torch.rand_like(x)"),
    "breaks the graph": _refused("GraphBreak", "y = x * 2 if x.sum() > 0 else x"),
    "writes in a branch": _refused("NotPortable", "y = torch.cond(x.sum() > 0, lambda v: v.add_(1) * 2, self.layer, (x,))", init=_LINEAR),
    "prints by an operator": _refused("NotPortable", "torch.ops.higher_order.print('{}', x.sum())\ny = x * 2"),
}  # fmt: skip
_SIGNS = "[a(N(5, 4) * sign) for sign in (1, -1, 1)]"
_QUERY = "[a(N(1, 2, 128, 16) * sign) for sign in (1, -1, 1)]"
_HIGHER = """\
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as mapped
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2
    @staticmethod
    def backward(ctx, *grads):
        return grads[0] * 2
@torch.compiler.nested_compile_region
def region(x, layer):
    return torch.relu(layer(x))
def causal(_b, _h, row, column):
    return row >= column
def nearby(score, _b, _h, row, column):
    return score - (row - column).abs()
def stopped(v):
    with torch.no_grad():
        fixed = v * 2
    return (v * fixed).sum()
BLOCKS = create_block_mask(causal, None, None, 128, 128, device="cpu")
"""
_TWO_LAYERS = "self.one, self.two, self.scale = nn.Linear(4, 4), nn.Linear(4, 4), 2.0"


def _higher(body: str, calls: str = _SIGNS, **slots: str) -> Called:
    return _row("compiled ran ran", calls, body, top=_HIGHER, init=_TWO_LAYERS, **slots)


HIGHER_ORDER = {
    "checkpoint": _higher("y = checkpoint(self.inner, x, use_reentrant=False) + 1", fields="def inner(self, x):\n    return self.two(torch.relu(self.one(x))) * self.scale"),
    "branch on data": _higher("y = torch.cond(x.sum() > 0, self.one, lambda v: self.two(v) * 2, (x,))"),
    "branch by cond on a size": _higher("y = torch.cond(x.shape[0] > 3, self.one, lambda v: self.two(v) * 2, (x,))"),
    "while loop": _higher("return while_loop(lambda i, _: i < x.sum(), lambda i, v: (i + 1, self.one(v)), (torch.zeros((), dtype=torch.int64), x))"),
    "scan": _higher("return scan(lambda carry, row: (carry + row, (carry * row).clone()), torch.zeros(4), x)"),
    "associative scan": _higher("y = associative_scan(lambda p, q: p + q, x, dim=0, combine_mode='generic')"),
    "map": _higher("y = mapped(lambda row, weight: row * weight, x, self.one.weight[0])"),
    "vmap": _higher("return torch.vmap(lambda row: self.one(row) * 2)(x), torch.vmap(torch.vmap(torch.mul))(x, x)"),
    "gradient": _higher("return torch.func.grad(lambda v: (self.one(v) ** 2).sum())(x), torch.func.grad(stopped)(x)"),
    "jacobian": _higher("return torch.func.jacrev(torch.sin)(x[0]), torch.func.jvp(torch.sin, (x,), (x,))"),
    "functional call": _higher("y = torch.func.functional_call(self.one, {'weight': self.one.weight * 2, 'bias': self.one.bias}, (x,))"),
    "gradient of one's own": _higher("y = Double.apply(x)"),
    "nested regions": _higher("y = region(region(x, self.one), self.two)"),
    "flex attention": _higher("y = flex_attention(x, x, x, score_mod=nearby, block_mask=BLOCKS)", _QUERY),
    "flex attention, masked within": _higher("y = flex_attention(x, x, x, block_mask=create_block_mask(causal, None, None, x.shape[2], x.shape[2], device='cpu'))", _QUERY),
}  # fmt: skip
AHEAD = (*HIGHER_ORDER, "complex constants", "integers beside complex numbers")
"""Programs that are tried in mode max-autotune, too."""
ON_DATA = ("branch on data", "while loop")
"""They stay in the graph, which mode max-autotune cannot compile."""
OF_ONE_HASH_SEED = ("flex attention", "flex attention, masked within")
"""Processes that hash strings otherwise miss what others compiled of these."""
_GEARED = "from warmrank.inference import set_dim_gears\ndef geared(x):\n    set_dim_gears(x, {0: [2, 4, 8]})\n    return x"
_OF_TORCHAIR = {
    "gears": _row("compiled ran ran ran", "[a(geared(N(n, 4))) for n in (2, 4, 8, 4)]", "y = self.layer(x) * 2", top=_GEARED, init=_LINEAR),
    "custom decomposition": _row("compiled ran", TWO, "y = F.silu(self.layer(x))", init=_LINEAR, top="def silu(x):\n    return x * torch.sigmoid(x)", options="custom_decompositions={torch.ops.aten.silu.default: silu}", tolerance=1e-6),
    "pattern that is fused": _row("compiled ran", "[a(N(3, 4), N(3, 4, seed=1)), a(N(5, 4), N(5, 4, seed=1))]", "y = x + residual\nreturn y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale, y", params="residual", init="self.scale = nn.Buffer(torch.full((4,), 2.0))", tolerance=1e-6),
    "custom pool": _row("compiled ran", TWO, "y = self.layer(x) * 2", init=_LINEAR, configure="from warmrank import graph_pool_handle\nconfig.aclgraph_config.use_custom_pool = graph_pool_handle()"),
    "variables of a closure": _row("compiled ran", TWO, "y = self.closing(x)", top="def closed(factor, shift):\n    return lambda x: x * factor + shift", init="self.closing = closed(1.5, torch.full((4,), 0.25))"),
}  # fmt: skip
CALLED = {**VALUES, **_LIBRARY, **_MEMORY, **HIGHER_ORDER, **_OF_TORCHAIR, **_REFUSED}
