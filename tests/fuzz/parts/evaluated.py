"""What Dynamo evaluates to constants, Python that it must follow as eager does, and what is refused by name.

Each row stands for a mistake that was made once; `tests.integration.test_fuzz` runs them one by one.
"""

# ruff: noqa: E501 - a program's text in one line per part reads as a table

from __future__ import annotations

import torch

from tests.fuzz.program import Part, part


def asking(name: str, ask: str, *changes: str, refused: str = "", said: str = "", **slots: str) -> Part:
    """A part that multiplies by an expression, and statements that change the model."""
    if ask:
        slots["body"] = f"y = y * ({ask})"
    mutations = {str(number): text for number, text in enumerate(changes)}
    return part(f"evaluated / {name}", slots, mutations=mutations, refused=refused, said=said)


_LATER = {
    "module of Python": ("helper", "helper"),
    "function": ("helper.same", "helper.same"),
    "partial": ("functools.partial(helper.same)", "m.o#"),
    "cached function": ("functools.lru_cache(helper.same)", "m.o#"),
    "class": ("K.Box", "main.K.Box"),
    "object": ("K.Box()", "m.o#"),
    "object with slots": ("K.Slotted(1)", "m.o#"),
    "namespace": ("types.SimpleNamespace()", "m.o#"),
    "layer": ("nn.Linear(3, 3)", "m.o#"),
    "bound method": ("K.Held(1).get", "main.K.Held.get"),
}
_FALLS = "class F#:\n    def __getattr__(self, name):\n        if name != 'b': raise AttributeError(name)\n        return 3"
_MAPPED = "class F#(dict):\n    def __getattr__(self, name):\n        if name not in self: raise AttributeError(name)\n        return self[name]"
_MISTAKEN = "is not what traced code takes it for"
_ZEROS = "torch.zeros(4, dtype=torch.float64)"
_BUFFER = "self.register_buffer('s#', torch.ones(4, dtype=torch.float64))"
ATTRIBUTES = (
    *(
        asking(f"attribute that appears / {kind}", "2 if hasattr(self.o#, 'b') else 3", f"{owner}.b = 7", said="no attr 'b'", init=f"self.o# = {text}")
        for kind, (text, owner) in _LATER.items()
    ),
    asking("attribute that appears / by default", "getattr(helper, 'b#', 3)", "helper.b# = 7", said="no attr"),
    asking("attribute that appears / by exception", "helper.attempt(helper, 'b#', 3)", "helper.b# = 7", said="no attr"),
    asking("attribute that goes", "2 if hasattr(helper, 'b#') else 3", "del helper.b#", said="has attr", helper="b# = 1"),
    asking("attribute that hides / object", "getattr(self.o#, 'b', 3)", "m.o#.b = 8", top=_FALLS, init="self.o# = F#()"),
    asking("attribute that hides / dict", "getattr(self.o#, 'b', 3)", "m.o#.__dict__['b'] = 8", top=_MAPPED, init="self.o# = F#(b=2)"),
    asking("attribute that hides / module", "self.b#", "m.__dict__['b#'] = 9", fields="def __getattr__(self, name):\n    return 3 if name == 'b#' else super().__getattr__(name)"),
    asking("attribute that hides / parameter", "self.first(y)", "m.first.__dict__['weight'] = torch.zeros(4, 4, dtype=torch.float64)"),
    asking("attribute that hides / layer", "self.first(y)", "m.__dict__['first'] = nn.Identity()"),
    asking("attribute that hides / buffer", "self.s#", f"m.__dict__['s#'] = {_ZEROS}", f"m._parameters.update(s#=nn.Parameter({_ZEROS}))", init=_BUFFER),
    asking("attribute of a partial", "getattr(self.f#, 'scale', K.Held(7)).a", "m.f#.scale.a = 4", "del m.f#.scale", said="self.f0.scale", init="self.f# = functools.partial(helper.same)\nself.f#.scale = K.Held(3)"),
    asking("name of a function", "len(self.f#.__qualname__)", "main.f#.__qualname__ = 'other'", said="__qualname__", top="def f#(): pass", init="self.f# = f#"),
    asking("subclass of partial", "self.f#(y) * 2", refused="subclass of functools.partial", top="class F#(functools.partial):\n    def __call__(self, *args):\n        return super().__call__(*args) + 1", init="self.f# = F#(helper.same)"),
    asking("builtins of a function", "len(self.f#.__builtins__)", init="self.f# = helper.same"),
    asking("dict of a partial", "1 + len(self.f#.__dict__)", refused=_MISTAKEN if torch.__version__ < "2.14" else "", init="self.f# = functools.partial(helper.same)"),
    asking("class of a partial", "len(self.f#.__class__.__name__)", refused=_MISTAKEN if torch.__version__ < "2.14" else "", init="self.f# = functools.partial(helper.same)"),
    asking("self of a method", "2 if hasattr(self.f#, '__self__') else 3", init="self.f# = K.Held(1).get"),
    asking("function that a cached one wraps", "len(self.f#.__wrapped__.__name__)", init="self.f# = functools.lru_cache(helper.same)"),
    asking("number of a function's globals", "len(helper.same.__globals__)", refused="adds names to those of"),
    asking("names of a function's globals", "sum(1 for n in helper.same.__globals__ if n.startswith('_'))", refused="adds names to those of"),
    asking("global of a function", "len(helper.same.__globals__['__name__'])"),
    asking("kind of a union", "2 if isinstance(self.o#, A# | None) else 3", "main.A#.register(type(m.o#))", top="class A#(K.Abstract):\n    pass", init="self.o# = K.Member()"),
    asking("assume_constant_result", "f#()", refused="assume_constant_result", top="@torch.compiler.assume_constant_result\ndef f#():\n    return 3"),
    asking("annotations of a function", "f#.__annotations__['v']", "main.f#.__annotations__['v'] = 8", top="def f#(v: 3): pass\nf#.__annotations__['v'] = 3"),
    asking("weak reference", "2 if self.s#() is None else 3", "m.o# = None", init="self.o# = K.Box()\nself.s# = weakref.ref(self.o#)"),
    asking("mark of a parameter", "2 if isinstance(self.w#, nn.Parameter) else 3", "m.w#._is_param = True", init=f"self.w# = {_ZEROS}"),
    *(
        asking(f"name that no expression has / {name!r}", f"getattr(self.o#, {name!r})", refused="attribute called", init=f"self.o# = K.Box()\nsetattr(self.o#, {name!r}, 3)")
        for name in ("\ufb01", "two words", "class", "")
    ),
)  # fmt: skip

_ASKING = """\
L# = [3]
class C#(enum.Enum):
    RED = 2
    BLUE = 5
    def __eq__(self, other): return self is other or self.value < L#[0]
    def __hash__(self): return hash(self.name)
    def __bool__(self): return int(self.value) < L#[0]
class M#(type):
    def __bool__(cls): return L#[0] > 2
class N#(metaclass=M#): pass
@functools.total_ordering
@dataclasses.dataclass(frozen=True)
class S#:
    number: int
    def __lt__(self, other): return self.number < other.number + L#[0]
    def __bool__(self): return self.number < L#[0]
"""
_CHOICES = {
    "if a member": ("2 if self.v# else 3", "C#.RED"),
    "if no member": ("2 if not self.v# else 3", "C#.RED"),
    "if a member and": ("2 if self.v# and x.dim() else 3", "C#.RED"),
    "if among members": ("2 if self.v# in (C#.BLUE, None) else 3", "C#.RED"),
    "if in a set": ("2 if self.v# in self.w# else 3", "C#.RED\nself.w# = {C#.BLUE}"),
    "if a class": ("2 if self.v# else 3", "N#"),
    "if no class": ("2 if not self.v# else 3", "N#"),
}
_WAYS = {
    "if": "2 if self.v# else 3",
    "not": "2 if not self.v# else 3",
    "and": "2 if self.v# and x.dim() else 3",
    "among": "2 if self.v# in (self.w#, None) else 3",
    "is": "2 if self.v# is self.w# else 3",
    "is not": "2 if self.v# is not self.w# else 3",
}
_PLAIN = ("K.Color.RED", "nn.Linear", "None", "True", "3", "()")
_OF_MANY = ("(1.5, 2)", "frozenset((1,))", "range(3)")
_ATOMS = {
    "'text'": "''.join([*m.v#])",
    "10_000": "int(str(m.v#))",
    "2.5": "float(str(m.v#))",
    "b'ab'": "bytes([*m.v#])",
}
_LOOKED_UP = {
    "enum": ("K.Color.RED", "K.Color.BLUE"),
    "int enum": ("K.Level.LOW", "K.Level.HIGH"),
    "str enum": ("K.Text.A", "K.Text.B"),
    "named tuple": ("K.Old(3, 2)", "K.Old(3, 3)"),
    "tuple": ("(1, 2)", "(1, 3)"),
    "dtype": ("torch.float32", "torch.float64"),
    "frozenset": ("frozenset((1,))", "frozenset((2,))"),
}
_TABLE = (
    "{"
    + ", ".join(f"{value}: {2 + number}" for pair in _LOOKED_UP.values() for number, value in enumerate(pair))
    + "}"
)
_LOOK_UPS = {
    "item": "T#[self.o#.a]",
    "in dict": "2 if self.o#.a in {self.w#: 1} else 3",
    "in set": "2 if self.o#.a in S# else 3",
    "in nested": "2 if (self.o#.a, 1) in {(self.w#, 1): 1} else 3",
    "equal": "2 if self.o#.a == self.w# else 3",
}
_ADDRESSES = {
    "repr": "len(repr(P#))",
    "str": "len(str(P#))",
    "repr of a function": "len(repr(helper.same))",
    "order by text": "1 + sorted([P#, O#], key=str).index(P#)",
    "hash of an object": "hash(P#) % 7",
    "hash of a class": "hash(K.Box) % 7",
    "hash of a dtype": "hash((torch.float32, 1)) % 7",
    "hash of a frozen set": "hash(frozenset([None, 1])) % 7",
    "id of a list": "id(N#) % 7",
    "id of a function": "id(helper.same) % 7",
    "ids as keys": "{id(N#): 3}[id(N#)]",
    "order of classes": "1 + list({K.Box, K.Held}).index(K.Box)",
}
_KIND = "class M#(type):\n    number = 5\n    def __getitem__(cls, _): return M#.number\n    def __add__(cls, _): return M#.number\nclass C#(metaclass=M#): pass\nclass I#:\n    def __class_getitem__(cls, _): return 5"
_OPERATOR = """
@torch.library.custom_op("fuzz::sized#", mutates_args=())
def sized#(y: torch.Tensor) -> torch.Tensor:
    return y.new_ones(int(os.environ.get("FUZZ#", "4")))
@sized#.register_fake
def _(y):
    return y.new_empty(int(os.environ.get("FUZZ#", "4")))
"""
_INSTALLED = "import importlib.util\nsys.modules['not_there'] = types.ModuleType('not_there')\nsys.modules['not_there'].__spec__ = importlib.util.spec_from_loader('not_there', None)"
_MAKES = "class M#(type):\n    def __call__(cls, number):\n        made = super().__call__(number)\n        made.number *= 2\n        return made\nclass A#(M#): pass\nclass D#(metaclass=A#):\n    def __init__(self, number):\n        self.number = number"
CONSTANTS = (
    *(asking(f"method of a constant / {name}", ask, refused="is called while the function is traced|decides what is in a set", top=_ASKING, init=f"self.v# = {value}") for name, (ask, value) in _CHOICES.items()),
    asking("method of a constant / if a frozen object", "2 if self.v# else 3", "main.L#[0] = 1", top=_ASKING, init="self.v# = S#(2)"),
    *(asking(f"constant without methods / {way} {value}", ask, init=f"self.v# = self.w# = {value}") for way, ask in _WAYS.items() for value in _PLAIN),
    *(asking(f"identity of equal constants / {way} {value}", _WAYS[way], refused="compare them with ==", init=f"self.v# = self.w# = {value}") for way in ("is", "is not") for value in _OF_MANY),
    *(asking(f"identity of equal atoms / {way} {value}", _WAYS[way], f"m.v# = {other}", "m.v# = 3", init=f"self.v# = self.w# = {value}") for way in ("is", "is not") for value, other in _ATOMS.items()),
    asking("identity with a literal", "2 if self.v# is 10_000 else 3", refused="compare them with ==", init="self.v# = 10_000"),
    asking("identity of constants that differ", _WAYS["is"], "m.w# = m.v# = (2.5, 2)", init="self.v# = (1.5, 2)\nself.w# = (1.5, 3)"),
    *(
        asking(f"looked up / {kind} / {way}", ask, f"m.o#.a = {second}", top=f"T# = {_TABLE}\nS# = frozenset([{first}])", init=f"self.o# = K.Held({first})\nself.w# = {first}")
        for kind, (first, second) in _LOOKED_UP.items() for way, ask in _LOOK_UPS.items()
    ),
    *(asking(f"address / {name}", ask, refused="address", top="P#, O# = K.Box(), K.Box()\nN# = [1]") for name, ask in _ADDRESSES.items()),
    *(asking(f"untraced / {ask}", ask, refused="not traced itself", top=_KIND) for ask in ("I#[0]", "C#[0]", "C# + 1")),
    asking("attribute of a metaclass", "C#.number", "main.M#.number = 7", top=_KIND),
    asking("method that a metaclass gets", "2 if C# else 3", "main.M#.__bool__ = lambda cls: False", top=_KIND),
    asking("instance that a metaclass makes", "D#(3).number", refused=r"A0.__call__|M0.__call__ makes the D0", top=_MAKES),
    asking("instance that a partialmethod of a metaclass makes", "D#(3).number", refused=r"M0.__call__ makes the D0", top="class M#(type):\n    __call__ = functools.partialmethod(lambda cls, *given: type.__call__(cls, *given))\nclass D#(metaclass=M#):\n    def __init__(self, number):\n        self.number = number"),
    asking("partialmethod", "C#().tripled(5)", "main.C#.tripled = functools.partialmethod(main.C#.scaled, 4)", top="class C#:\n    def scaled(self, factor, number):\n        return factor * number\n    tripled = functools.partialmethod(scaled, 3)"),
    asking("singledispatch", "f#(self.v#)", refused="functools.singledispatch", top="@functools.singledispatch\ndef f#(v):\n    return 2", init="self.v# = 5"),
    asking("singledispatchmethod", "self.f#(5)", refused="functools.singledispatch", fields="@functools.singledispatchmethod\ndef f#(self, v):\n    return 2"),
    asking("value among the builtins", "2 if put# else 3", "import builtins; builtins.put# = False", said=r"builtins\['put0'\]: True -> False", top="import builtins\nbuiltins.put# = getattr(builtins, 'put#', True)"),
    part("evaluated / module that is installed", {"top": "import importlib.util", "body": "y = y * (2 if importlib.util.find_spec('not_there') else 3)"}, sources={"installed": {"top": _INSTALLED}}, said="find_spec"),
    asking("bound method of C", "2 if self.f#('ab') else 3", init="self.f# = re.compile('a+').match"),
    part("evaluated / environment that a fake kernel reads", {"helper": _OPERATOR, "body": "y = y * helper.sized#(y).shape[0]"}, environments={"set": {"FUZZ#": "5"}}, said=r"getenv\(FUZZ0\): None -> 5"),
    *(
        asking(f"partials / {name}", f"self.f#(y) if {ask} else self.g#(y) + 1", "m.g# = functools.partial(K.multiplied, by=2)", init="self.f# = self.g# = functools.partial(K.multiplied, by=2)")
        for name, ask in {"is": "self.f# is self.g#", "is not": "self.f# is not self.g#", "==": "self.f# == self.g#", "in": "self.f# in [len, self.g#]", "count": "[self.f#, self.f#].count(self.g#) > 1"}.items()
    ),
    asking("identity of methods", "2 if self.forward is self.forward else 3", refused="`is` between methods"),
    asking("truth in a tuple", "10 if isinstance(self.o#[0]['w'][0], bool) else 20", "m.o#[0]['w'] = (True, 2)", init="self.o# = [{'w': (1, 2)}]"),
    asking("lone surrogate", "self.d#[self.k#]", "m.k# = 'b'", init="self.k# = chr(0xD800)\nself.d# = {self.k#: 2, 'b': 3}"),
    asking("largest of tensors", "max(y.sum(), y.sum() + 1)", refused=r"torch\.maximum"),
    asking("smallest of a single tensor", "min(y.reshape(-1)[:1]) + 2"),
    # Of regions, Dynamo takes an earlier one's graph for a later one, without conditions of its own.
    asking("attribute of a later region", "", "m.q# = nn.Identity()", top="@torch.compiler.nested_compile_region\ndef region#(x, layer):\n    return torch.relu(layer(x))", init="self.p#, self.q# = (nn.Linear(4, 4, dtype=torch.float64) for _ in range(2))", body="y = region#(region#(y, self.p#), self.q#)"),
    asking("attribute that a body reads", "", "m.k# = 5", said="k0", init="self.k# = 3", top="from torch.utils.checkpoint import checkpoint", body="y = checkpoint(lambda v: v * self.k#, y, use_reentrant=False)"),
    part("evaluated / body of a branch", {"helper": "def f#(v):\n    return v * 3", "body": "y = torch.cond(y.sum() > 0, helper.f#, lambda v: v * 2, (y,))"}, sources={"body": {"helper": "def f#(v):\n    return v * 5"}}, said="f0 changed"),
    asking("NumPy result without dimensions", "", refused="without dimensions", body="return y.numpy().sum()"),
)  # fmt: skip

_MADE = """\
N# = [3]
class Knob#: number = 3
def made#(numbers):
    class C:
        def __init__(self): self.first = numbers[0]
        def method(self): return numbers[0]
        @property
        def member(self): return numbers[0]
        @staticmethod
        def static(): return numbers[0]
        @classmethod
        def of_class(cls): return numbers[0]
        def __len__(self): return numbers[0]
        def given(self, knob=Knob#()): return knob.number
    return C
def described#(numbers):
    class Reads:
        def __get__(self, instance, owner=None): return numbers[0]
    return Reads
C# = made#(N#)
D# = type("D#", (C#,), {})
H# = type("H#", (), {"number": described#(N#)()})
"""
_REACHED = {
    "a constructor": "C#().first", "a method": "C#().method()", "a property": "C#().member", "a static method": "C#().static()",
    "a class method": "C#().of_class()", "a special method": "len(C#())", "a base": "D#().method()", "a descriptor": "H#().number",
}  # fmt: skip
_ATTRS = "def define#(**defaults):\n    def wrap(cls):\n        def __init__(self, **given):\n            for name, default in defaults.items():\n                setattr(self, name, given.get(name, default))\n        cls.__init__ = __init__\n        return cls\n    return wrap\n@define#(first=2, second=3)\nclass C#: pass"
_ENTERED = "class D#:\n    step, depth = 2, 0\n    def __enter__(self):\n        self.depth += self.step\n        return self.depth\n    def __exit__(self, kind, *_):\n        self.depth -= self.step\n        return kind is ValueError\n    def __str__(self): return 'd' * self.step"
_OWN = "class O#:\n    def __init__(self, number): self.number = number\n    def __hash__(self): return hash(self.number)\n    def __eq__(self, other): return isinstance(other, O#) and other.number == self.number\n    def __repr__(self): return f\"own '{self.number}'\"\n    def __format__(self, spec): return spec * self.number"
_TOLD = "class T#:\n    size = 2\n    def __repr__(self): return '.' * self.size"
PATHS = (
    *(asking(f"outer variable / {name}", ask, "main.N#[0] = 4", top=_MADE) for name, ask in _REACHED.items()),
    asking("outer variable / attrs", "C#(second=4).first", "main.C#.__init__.__closure__[0].cell_contents['first'] = 7", top=_ATTRS),
    asking("default value of a new object's method", "C#().given()", "main.Knob#.number = 7", top=_MADE),
    asking("member of an enum / by its name", "C#['RED'].value", "main.C#.RED._value_ = 4", top="class C#(enum.Enum):\n    RED = 2"),
    asking("member of an enum / by its value", "C#(2).value", "main.C#.RED._value_ = 4", top="class C#(enum.Enum):\n    RED = 2"),
    asking("member of an enum / that is gone", "int(B#.ONE | B#.TWO)", "main.B#(3)._name_ = 'TWO|FOUR'", said=r"TWO\|FOUR", top="class B#(enum.IntFlag):\n    ONE = 1\n    TWO = 2"),
    asking("attribute of a function without a guard", "f#.by_kind[int]() + 0", refused="mappingproxy", top="def f#(): return 3\nf#.by_kind = types.MappingProxyType({int: f#})"),
    asking("key that is NaN", "self.d#.get(self.k#, 7)", refused="NaN|nan", init="self.k# = float('nan')\nself.d# = {self.k#: 3}"),
    asking("identity of NaN", "2 if self.o#.a in self.l# else 3", "m.o#.a = float('nan')", init="self.o# = K.Held(float('nan'))\nself.l# = [self.o#.a]"),
    asking("attribute that is deleted", "", "m.s# = 1", body="self.s# = 4\ny = y * self.s#\ndel self.s#"),
    asking("copy of a limited deque", "", "m.d#.append(7)", init="self.d# = collections.deque([1, 2], maxlen=2)", body="s# = self.d#.copy()\ns#.append(5)\ny = y * sum(s#)"),
    asking("context from before the call", "", "m.d#.step = 3", top=_ENTERED, init="self.d# = D#()", body="with self.d# as n#:\n    y = y * n#\nwith self.d#:\n    raise ValueError\ny = y + len('%s-%d' % (self.d#, 4))"),
    asking("text / by conversions", "len('%r|100%%|%-9s|%.2f' % (self.o#, self.o#, 2.5))", "m.o#.number = 1234", top=_OWN, init="self.o# = O#(3)"),
    asking("text / by format", "len(f'{self.o#:ab}') + len(f'{self.o#}')", "m.o#.number = 4", top=_OWN, init="self.o# = O#(3)"),
    asking("text / by str", "len(str(self.o#))", "m.o#.size = 5", top=_TOLD, init="self.o# = T#()"),
    asking("text / of a module", "len(str(self))", "m.layer = nn.Linear(5, 5)"),
    asking("keys that say which are equal", "{O#(3): 1, O#(4): 2, O#(3): 3}[self.o#] + len({O#(3): 1, O#(4): 2, O#(3): 3})", "m.o# = type(m.o#)(4)", top=_OWN, init="self.o# = O#(3)"),
    asking("keys that say which are equal, kept", "self.d#[self.o#]", refused="Key the dict by texts", top=_OWN, init="self.o# = O#(3)\nself.d# = {O#(3): 2}"),
)  # fmt: skip

_NAMES = "self.o# = types.SimpleNamespace(a=1, b=2)"
_ORDERED = "self.d# = collections.OrderedDict(a=1, b=2)"
_IN_ORDER = "for v# in self.d#.values():\n    y = y * 10 + v#"
_ALIASED = {
    "list": ("[1.0]", "self.a#.append(2.0)\ny = y * len(self.b#)"),
    "deque": ("collections.deque([1.0])", "self.a#.append(2.0)\ny = y * len(self.b#)"),
    "set": ("{1}", "self.a#.add(2)\ny = y * len(self.b#)"),
    "dict": ("{'a': 1.0}", "self.a#['k'] = 2.0\ny = y * len(self.b#)"),
    "object": ("K.Held(1)", "self.a#.a = 7\ny = y * self.b#.a"),
}
_KEYS = {
    "enum": ("K.Color.RED", "K.Color.BLUE"),
    "named tuple": ("K.Pair(1)", "K.Pair(2)"),
    "method": ("K.Held(1).get", "K.Held(1).get"),
    "class method": ("K.Left.made", "K.Right.made"),
}
_COUNTERS = "def counters#():\n    count = 1\n    def raised(y):\n        nonlocal count\n        count = count + 1\n        return y * count\n    def read(y):\n        return y * count\n    return raised, read"
TREE = (
    *(
        asking(f"key that is added / {name}", ask, "m.o#.c = 5", init=_NAMES)
        for name, ask in {"values": "sum(vars(self.o#).values())", "size": "len(vars(self.o#))", "in": "2 if 'c' in self.o#.__dict__ else 3", "default": "self.o#.__dict__.get('c', 3)"}.items()
    ),
    asking("order of keys / names", "", "m.d# = collections.OrderedDict(reversed(m.d#.items()))", init=_ORDERED, body=_IN_ORDER),
    asking("order of keys / functions", "", "m.d# = dict(reversed(m.d#.items()))", init="self.d# = {abs: 2, len: 3}", body=_IN_ORDER),
    asking("order of keys / moved before", "", refused="OrderedDict", init=f"{_ORDERED}\nself.d#.move_to_end('a')", body=_IN_ORDER),
    part("evaluated / order of keywords", {"params": "**kw#", "kwargs": "a=1.0, b=2.0", "body": "for v# in kw#.values():\n    y = y * 10 + v#"}, sources={"order": {"kwargs": "b=2.0, a=1.0"}}),
    asking("limit of a deque", "", "m.d# = collections.deque([1, 2], maxlen=2)", init="self.d# = collections.deque([1, 2])", body="self.d#.append(3)\ny = y * len(self.d#)"),
    *(
        asking(f"write by another path / {kind} / {name}", "", f"m.b# = {other}", init=f"self.a# = {text}\nself.b# = {held}", body=body)
        for kind, (text, body) in _ALIASED.items() for name, held, other in (("distinct", text, "m.a#"), ("same", "self.a#", text))
    ),
    *(
        asking(f"key that is another object / {kind} / {name}", "{self.a#: 3}.get(self.b#, 5)", f"m.b# = {other}", init=f"self.a# = {text}\nself.b# = {held}")
        for kind, (text, second) in _KEYS.items() for name, held, other in (("distinct", second, "m.a#"), ("same", "self.a#", second))
    ),
    asking("attribute that is a global", "self.a#[0] + helper.S#[0]", "m.a# = list(m.a#)", said="same object", helper="S# = [2.0]", init="self.a# = helper.S#"),
    asking("functions that share a variable", "", "m.s# = main.counters#()[1]", top=_COUNTERS, init="self.r#, self.s# = counters#()", body="y = self.r#(y) + self.s#(y)"),
    asking("attribute that is looked for and walked", "1 + len(list((self.o#.sizes if hasattr(self.o#, 'sizes') else {}).keys()))", "del m.o#.sizes", init="self.o# = K.Held(1)\nself.o#.sizes = {'a': 1}"),
    asking("kind of a tensor's numbers", "self.w#.exp().sum() if torch.is_floating_point(self.w#) else 2", "m.w# = torch.ones(4, dtype=torch.int64)", init="self.register_buffer('w#', torch.ones(4))"),
)  # fmt: skip

_WRAPPED = "{0} = (lambda f: lambda *args, **kwargs: f(*args, **kwargs) + 1)({0})"
_RENAMED = (
    "F.leaky_relu.__code__ = F.hardtanh.__code__.replace(co_name='leaky_relu', co_qualname='leaky_relu')"
)
TORCH = tuple(
    asking(f"replaced in torch / {name}", ask, change, init="self.n# = nn.LayerNorm(4, dtype=torch.float64)")
    for name, ask, change in (
        ("defaults of a function", "F.leaky_relu(y - 2)", "F.leaky_relu.__defaults__ = (0.5, False)"),
        ("code of a function", "F.leaky_relu(y - 2)", "F.leaky_relu.__code__ = F.relu6.__code__"),
        ("code of that name", "F.leaky_relu(y - 2)", _RENAMED),
        ("defaults of a method", "y.norm()", "torch.Tensor.norm.__defaults__ = (1, None, False, None)"),
        ("defaults of an inner function", "F.cross_entropy(y, torch.tensor([0, 1, 2]))", "F.cross_entropy.__defaults__ = None"),
        ("inner function in C", "F.leaky_relu(y - 2)", "torch._C._nn.leaky_relu = torch._C._nn.gelu"),
        ("inner function", "torch.einsum('ij,kj->ik', y, y).sum()", _WRAPPED.format("torch._VF.einsum")),
        ("function by a wrapper", "F.relu(y - 2)", _WRAPPED.format("F.relu")),
        ("function in C by a wrapper", "self.n#(y)", _WRAPPED.format("torch.layer_norm")),
        ("function of a layer by a wrapper", "self.n#(y)", _WRAPPED.format("F.layer_norm")),
        ("overload by another", "torch.ops.aten.relu.default(y - 2)", "torch.ops.aten.relu.default = torch.ops.aten.sigmoid.default"),
        ("what an overload calls", "torch.ops.aten.relu.default(y - 2)", "torch.ops.aten.relu.default._op = torch.sigmoid"),
        ("property of tensors", "y.T.sum()", "torch.Tensor.T = property(lambda x: x.t() + 1)"),
        ("method of tensors", "y.abs().sum()", "torch.Tensor.abs = torch.Tensor.neg"),
        ("operator of tensors", "(y + 1).sum()", "torch.Tensor.__add__ = torch.Tensor.__mul__"),
        ("function by a partial", "torch.abs(y - 2).sum()", "torch.abs = functools.partial(torch.mul, other=3)"),
        ("function that another one calls", "F.relu(y - 2).sum()", "torch.relu = torch.sigmoid"),
        ("method of a layer by another's", "self.n#(y).sum()", "nn.LayerNorm.forward = nn.Identity.forward"),
    )
)  # fmt: skip

# A value that the module keeps, an expression, and a change; ``$`` stands for the value.
_KEPT = {
    "length of dict": ("{'a': 1, 'b': 2}", "len($)", "$.update(z=1)"),
    "items of dict": ("{'a': 1, 'b': 2}", "sum(len(k) * v for k, v in $.items())", "$.update(b=9)"),
    "order of dict": ("{'a': 1, 'b': 2}", "next(iter($.values()))", "$.update(a=$.pop('a'))"),
    "truth of dict": ("{}", "2 if $ else 3", "$.update(z=1)"),
    "truth of list": ("[]", "2 if $ else 3", "$.append(1)"),
    "membership in list": ("[1, 2]", "2 if 7 in $ else 3", "$[0] = 7"),
    "membership in set": ("{1, 2}", "2 if 7 in $ else 3", "$.add(7)"),
    "sum of frozenset": ("frozenset({1})", "sum($)", "$ = frozenset({9})"),
    "index in list": ("[1, 2]", "$.index(2)", "$.insert(0, 5)"),
    "any of list": ("[False, False]", "2 if any($) else 3", "$[0] = True"),
    "start of text": ("'ab'", "2 if $.startswith('a') else 3", "$ = 'bc'"),
    "length of formatted": ("5", "len(f'{self.training}-{$}')", "$ = 1000"),
    "item of tuple": ("(1, 2)", "$[0] + f#($)", "$ = (9, 2)"),
    "item of nested tuple": ("(1, (2,))", "$[1][0]", "$ = (1, (9,))"),
    "type of object": ("K.Thing()", "2 if type($) is K.Thing else 3", "$ = main.K.OtherThing()"),
    "attribute of attribute": ("K.Thing()", "$.child.a", "$.child.a = 9"),
    "absent attribute": ("K.Thing()", "getattr($, 'absent', 3)", "$.absent = 9"),
    "absent attribute by exception": ("K.Thing()", "helper.attempt($, 'absent', 3)", "$.absent = 9"),
    "absent key": ("{}", "$.get('absent', 3)", "$.update(absent=9)"),
    "absent key by exception": ("{'a': 1}", "g#($)", "$.update(absent=9)"),
    "absent key of global": ("1", "g#(TABLE#)", "main.TABLE#['absent'] = 9"),
    "absent environment variable": ("1", "1 + len(os.environ.get('FUZZ_ABSENT', ''))", "os.environ['FUZZ_ABSENT'] = 'long'"),
    "environment variable": ("1", "len(os.environ['OMP_NUM_THREADS'])", "os.environ['OMP_NUM_THREADS'] = 'longer'"),
    "instance dict": ("K.Thing()", "vars($)['x']", "$.x = 9"),
    "none": ("None", "2 if $ is None else 3", "$ = 4"),
    "function": ("K.double", "$(3) + (2 if $ is K.double else 3)", "$ = main.K.triple"),
    "range": ("range(3)", "sum($)", "$ = range(1, 6)"),
    "deque": ("collections.deque([1, 2])", "sum($)", "$.append(4)"),
    "default dict": ("collections.defaultdict(int, q=1)", "$['q']", "$.update(q=9)"),
    "ordered dict": ("collections.OrderedDict(a=1, b=2)", "next(iter($.values()))", "$.move_to_end('a')"),
    "namespace": ("types.SimpleNamespace(x=2)", "$.x", "$.x = 9"),
    "equality of dataclass": ("K.Config(1)", "2 if $ == K.Config(1) else 3", "$ = main.K.Config(5)"),
    "dataclass as key": ("{K.Frozen(1): 4}", "$.get(K.Frozen(1), 3)", "$ = {main.K.Frozen(2): 4}"),
    "named tuple": ("K.Pair(1, 2)", "$.size", "$ = main.K.Pair(9, 2)"),
    "slot": ("K.Slotted(2)", "$.a", "$.a = 9"),
    "property of object": ("K.Thing()", "$.shown", "$.hidden = 9"),
    "special methods": ("K.Sized(4)", "len($) + $[1] + sum($) + (2 if $ else 3) + (4 in $)", "$.n = 9"),
    "attribute hook": ("K.Dynamic(found=2)", "$.found", "$.values.update(found=9)"),
    "number of layers": ("nn.ModuleList([nn.ReLU(), nn.ReLU()])", "len($)", "$.append(nn.ReLU())"),
    "attribute of layer": ("nn.ModuleList([nn.Dropout(0.5)])", "$[0].p", "$[0].p = 0.25"),
    "different layers": ("nn.ModuleList([nn.ReLU(), nn.ReLU()])", "2 if $[0] is $[1] else 3", "$[1] = $[0]"),
    "names of layers": ("nn.ModuleDict({'a': nn.ReLU()})", "2 if 'q' in $ else 3", "$.update({'q': nn.ReLU()})"),
    "number of children": ("1", "len(list(self.children()))", "m.added = nn.ReLU()"),
    "number of parameters": ("1", "len([n for n, _ in self.named_parameters()])", "m.added = nn.Parameter(torch.ones(2))"),
    "sizes of buffers": ("1", "1 + sum(b.shape[0] for _, b in self.named_buffers())", "m.register_buffer('added', torch.ones(5))"),
    "size of parameter": ("nn.Parameter(torch.ones(3))", "$.shape[0]", "$ = nn.Parameter(torch.ones(5))"),
    "gradients of parameter": ("nn.Parameter(torch.ones(3))", "2 if $.requires_grad else 3", "$.requires_grad_(False)"),
    "layout of parameter": ("nn.Parameter(torch.ones(4, 3))", "2 if $.is_contiguous() else 3", "$ = nn.Parameter(torch.ones(3, 4).t())"),
    "rank of buffer": ("nn.Buffer(torch.ones(3))", "$.ndim", "$ = torch.ones(2, 2)"),
    "missing buffer": ("1\nself.register_buffer('w#', None)", "2 if self.w# is None else 3", "m.w# = torch.ones(1)"),
    "missing parameter": ("1\nself.register_parameter('w#', None)", "2 if self.w# is None else 3", "m.w# = nn.Parameter(torch.ones(1))"),
    "number of tensors": ("[torch.ones(1)]", "len($)", "$.append(torch.ones(1))"),
    "root of number": ("4.0", "math.sqrt($) + int($)", "$ = 9.0"),
    "sign of zero": ("0.0", "math.copysign(1.0, $)", "$ = -0.0"),
    "type of number": ("1", "2 if $ is True else 3", "$ = True"),
    "class attribute": ("1", "self.OWN#", "main.Main.OWN# = 9"),
    "class attribute that is hidden": ("1", "self.OWN#", "m.OWN# = 9"),
    "dict of class": ("1", "self.OWN_TABLE#['a']", "main.Main.OWN_TABLE#['a'] = 9"),
    "attribute of base class": ("K.OtherThing()", "$.KIND + K.Right.size", "main.K.Base.size = 9; main.K.OtherThing.KIND = 8"),
    "attribute of another class": ("1", "K.Thing.KIND", "main.K.Thing.KIND = 9"),
    "class as attribute": ("K.Thing", "$.KIND + $().x", "$ = main.K.OtherThing"),
    "global number": ("1", "LIMIT#", "main.LIMIT# = 9"),
    "global list": ("1", "sum(SERIES#)", "main.SERIES# = [1, 2, 3]"),
    "global dict": ("1", "TABLE#['a']", "main.TABLE#['a'] = 9"),
    "global function": ("1", "negative#(3)", "main.negative# = main.K.double"),
    "default argument": ("1", "listed#()", "main.listed#.__defaults__ = ([9],)"),
    "default keyword": ("1", "keyed#()", "main.keyed#.__kwdefaults__ = {'k': 9}"),
    "closure": ("(lambda n: lambda v: v * n)(2)", "$(3)", "$.__closure__[0].cell_contents = 9"),
    "argument of partial": ("functools.partial(K.multiplied, 1)", "$(2)", "$ = functools.partial(main.K.multiplied, 9)"),
    "keyword of partial": ("functools.partial(K.multiplied, by=1)", "$(2)", "$ = functools.partial(main.K.multiplied, by=9)"),
    "object of bound method": ("K.Held(2).get", "$()", "$.__self__.a = 9"),
    "member of enum": ("K.Color.RED", "$.value + len($.name) + (2 if $ is K.Color.RED else 3)", "$ = main.K.Color.BLUE"),
    "member of int enum": ("K.Level.LOW", "$ + 1", "$ = main.K.Level.HIGH"),
    "dtype": ("torch.float32", "2 if $ == torch.float16 else 3", "$ = torch.float16"),
    "size": ("torch.Size([2])", "$[0]", "$ = torch.Size([9])"),
    "subclass of dict": ("K.Dict(a=1)", "$['a']", "$.update(a=9)"),
    "subclass of list": ("K.List([1])", "$[0]", "$[0] = 9"),
    "user dict": ("collections.UserDict(a=1)", "$['a']", "$.update(a=9)"),
    "items of a user dict": ("collections.UserDict(a=1)", "sum(v for k, v in $.items()) + sum($.values())", "$.update(a=9)"),
    "attribute by name": ("'OWN#'", "getattr(self, $)", "$ = 'OTHER#'"),
    "keyword arguments": ("{'y': 1, 'by': 2}", "K.multiplied(**{k: $[k] for k in ('y', 'by')})", "$.update(y=9)"),
    "function that is mapped": ("K.double", "sum(map($, [1, 2]))", "$ = main.K.triple"),
    "training": ("1", "2 if self.training else 3", "m.eval()"),
}  # fmt: skip
_GLOBALS = """\
LIMIT#, SERIES#, TABLE# = 5, [1, 2], {"a": 1}
def negative#(value): return -value
def listed#(given=SERIES#): return sum(given)
def keyed#(*, k=2): return k
def g#(table):
    try:
        return table["absent"]
    except KeyError:
        return 3
def f#(pair):
    match pair:
        case (1, right):
            return right
        case _:
            return 50
"""
KEPT = tuple(
    asking(f"kept / {name}", ask.replace("$", "self.v#"), change.replace("$", "m.v#"), top=_GLOBALS, fields="OWN#, OTHER#, OWN_TABLE# = 4, 8, {'a': 4}", init=f"self.v# = {text}")
    for name, (text, ask, change) in _KEPT.items()
)  # fmt: skip

# Containers of the user's classes, and objects that are copied.
_OWN = """\
class G#(dict):
    def __getitem__(self, key): return super().__getitem__(key) * 10
    def items(self): return [("a", 9)]
class O#(collections.OrderedDict):
    def __getitem__(self, key): return super().__getitem__(key) * 10
    def __bool__(self): return False
class I#(list):
    def __iter__(self): yield 7
class S#(set): pass
class D#(collections.deque):
    def __getitem__(self, place): return 3
class E#(list): pass
class X#(dict):
    def __init__(self, *given): super().__init__(*given)
    def __getitem__(self, key): return 3
class R#:
    def __init__(self, a=2): self.a = a
    def __getstate__(self): return {"a": self.a * 3}
class N#:
    def __new__(cls, a=2):
        made = object.__new__(cls)
        made.a = a
        return made
    def __getnewargs__(self): return (5,)
class L#:
    __slots__ = ("a",)
    def __init__(self): self.a = 2
class M#(L#):
    def __init__(self): super().__init__(); self.b = 3
def summed#(**named): return sum(named.values())
def counted#(*given): return len(given)
def updated#(table): made = {}; made.update(table); return sum(made.values())
def united#(table): made = {}; made |= table; return sum(made.values())
def matched#(table):
    match table:
        case {"a": value}: return value
    return 50
def grown#(values): values += [5]; return len(values)
def twice#(values): values *= 2; return values
def less#(members): members -= {1}; return 1 + len(members)
def emptied#(members): members.clear(); return 1 + len(members)
def fetched#(table): return sum(table[name] for name in table) + table.get("a", 0) + len(table)
"""
_GIVEN = {
    "G": "G#(a=1, b=2)",
    "O": "O#(a=1, b=2)",
    "I": "I#([1, 2])",
    "S": "S#({1, 2})",
    "D": "D#([1])",
    "X": "X#({'a': 1})",
}
_AS_WHOLE = {
    "G": ("sum(dict($).values())", "sum({**$}.values())", "summed#(**$)", "updated#($)", "united#($)", "matched#($)", "sum(collections.OrderedDict($).values())", "sum($.copy().values())", "$.setdefault('a', 3)", "len(dict.fromkeys($))"),
    "O": ("sum(dict($).values())", "$.setdefault('a', 3)", "sum(($ | {'z': 1}).values())", "2 if $ else 3", "2 if not $ else 3", "sum(type($)($).values())"),
    "I": ("counted#(*$)", "sum([1] + $)", "sum($)", "len({3}.union($))"),
    "S": ("len($)", "2 if 1 in $ else 3", "emptied#($)", "len(S#({3}))"),
    "D": ("$[0]", "1 + len($)"),
    "X": ("sum(X#($).values())",),
}  # fmt: skip
_ONE_BY_ONE = {
    "G": ("$['a']", "dict(k=$)['k']['a']", "R#($).a['a']", "fetched#($)", "sum($.values())", "sum(v for k, v in $.items())", "2 if 'a' in $ else 3", "len(list($))", "2 if $ else 3", "sum(copy.copy($).values())", "sum({k: $[k] for k in $}.values())"),
    "I": ("sum(v for v in $)", "$[0]", "len($)", "list($)[0]", "sum(map(abs, $))"),
    "X": ("$['a']",),
}  # fmt: skip
_COPIES = {
    "dict": ("K.Dict(a=[1], b=[2])", "len(copy.copy($)) + copy.deepcopy($)['b'][0]"),
    "list": ("E#([1, 2])", "sum(copy.copy($)) + sum(copy.deepcopy($))"),
    "state": ("R#()", "copy.copy($).a"),
    "arguments of __new__": ("N#()", "copy.copy($).a + copy.deepcopy($).a"),
}
CONTAINERS = (
    *(
        asking(f"container as a whole / {ask.replace('$', _GIVEN[kind])}", ask.replace("$", "self.v#"), refused="of its own" if kind in "SD" else "as a whole", top=_OWN, init=f"self.v# = {_GIVEN[kind]}")
        for kind, asks in _AS_WHOLE.items()
        for ask in asks
    ),
    *(
        asking(f"container one by one / {ask.replace('$', _GIVEN[kind])}", ask.replace("$", "self.v#"), top=_OWN, init=f"self.v# = {_GIVEN[kind]}")
        for kind, asks in _ONE_BY_ONE.items()
        for ask in asks
    ),
    *(asking(f"copy / {name}", ask.replace("$", "self.v#"), top=_OWN, init=f"self.v# = {text}") for name, (text, ask) in _COPIES.items()),
    asking("copy by slots", "2 if hasattr(copy.copy(self.v#), 'a') else 3", refused="__slots__", top=_OWN, init="self.v# = M#()"),
    asking("changed in place / list", "grown#(self.v#)", top=_OWN, init="self.v# = E#([1])"),
    asking("changed in place / list, doubled", "len(twice#(self.v#))", top=_OWN, init="self.v# = [1]"),
    asking("member of a tuple", "grown#(self.v#[0]) + len(self.w#)", top=_OWN, init="self.w# = [1]\nself.v# = (self.w#,)"),
    asking("members of a repeated list", "grown#(operator.mul(self.v#, 2)[0]) + len((self.v# * 2)[1])", top=_OWN, init="self.v# = [[1]]"),
    asking("members of a list twice as long", "grown#(twice#(self.v#)[0]) + len(self.v#[1])", top=_OWN, init="self.v# = [[1]]"),
    asking("flags together", "2 if self.v# == re.I | re.S else 3", "m.v# = re.I", init="self.v# = re.I | re.S"),
    asking("changed in place / set", "less#(self.v#)", top=_OWN, init="self.v# = {1, 2}"),
    asking("changed in place / by its name", "len(self.v#.__iadd__([2]))", refused="by iadd", top=_OWN, init="self.v# = [1]"),
)  # fmt: skip

_MADE = """\
class P#:
    def __get__(self, owner, kind=None): return vars(owner).get("set", 5)
    def __set__(self, owner, value): vars(owner)["set"] = value
    def __delete__(self, owner): vars(owner)["set"] = 7
def after#(owner): del owner.p#; return owner.p#
def opened#(log):
    try: yield 2
    finally: log.append(1)
"""
OBJECTS = (
    asking("deleted by a property", "after#(self)", top=_MADE, init="self.q# = 2", fields="@property\ndef p#(self): return self.q#\n@p#.deleter\ndef p#(self): self.q# = 9"),
    asking("deleted by a descriptor", "after#(self)", top=_MADE, fields="p# = P#()"),
    asking("partial of a partial", "len((f := functools.partial(self.v#, by=7)).keywords) + len(f.args) + (2 if f.func is K.multiplied else 3)", init="self.v# = functools.partial(K.multiplied, 1)"),
    asking("generator that is left", "next(opened#(self.v#)) + len(self.v#)", refused="leaves.*generator", top=_MADE, init="self.v# = []"),
    asking("generator that is run", "sum(opened#(self.v#)) + len(self.v#)", top=_MADE, init="self.v# = []"),
    asking("generator of Python's that is left", "next(iter(self.v#))", init="self.v# = collections.UserList([2, 3])"),
    asking("generator that is kept", "2 if setattr(self, 'g#', opened#([])) is None else 3", refused="generator", top=_MADE),
    *(asking(f"division by NumPy / {ask}", f"float({ask.replace('$', 'self.v#')})", "m.v# = np.int64(5)", init="self.v# = np.int64(3)") for ask in ("$ / 2", "7 // $", "$ % 2", "sum(divmod(7, $))", "$ ** 2 / $")),
)  # fmt: skip

EVALUATED = (*ATTRIBUTES, *CONSTANTS, *PATHS, *TREE, *TORCH, *KEPT, *CONTAINERS, *OBJECTS)
