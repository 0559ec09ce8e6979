"""Python's enums, imports, copies, errors, classes, ends of objects, and functions that keep their results.

Each row stands for a mistake that was made once; `tests.integration.test_fuzz` runs them one by one.
"""

# ruff: noqa: E501 - a program's text in one line per part reads as a table

from __future__ import annotations

from tests.fuzz.parts.evaluated import asking
from tests.fuzz.program import Change, Part, part

_ENUM = "class C#(enum.Enum):\n    A = 2\n    B = 3\n    Z = %s\n    @classmethod\n    def _missing_(cls, value): return cls.%s"
_FLAG = "class C#(enum.Flag):\n    A = 1\n    B = 2\n    %s = 3"
_MEMBERS = "class S#(enum.StrEnum):\n    A = 'a'\n    B = 'b'\nclass I#(enum.IntEnum):\n    A = 1\n    B = 2"
ENUMS = (
    part("language / member that a value stands for", {"top": _ENUM % (2, "B"), "body": "y = y * C#(9).value"}, sources={"missing": {"top": _ENUM % (2, "A")}}, said=r"C0\(9\)|C0\._missing_"),
    part("language / member that a name stands for", {"top": _ENUM % (2, "B"), "body": "y = y * C#['Z'].value"}, sources={"alias": {"top": _ENUM % (5, "B")}}, said="getitem"),
    asking("text with a member", "2 if self.o# + 'b' == 'ab' else 3", "m.o# = main.S#.B", top=_MEMBERS, init="self.o# = S#.A"),
    asking("methods of a text that a member is", "len(self.o#.upper() + self.o#.replace('a', 'cd')) + ('b' in self.o#) + (self.o#[0] == 'a')", "m.o# = main.S#.B", top=_MEMBERS, init="self.o# = S#.A"),
    asking("methods of a number that a member is", "self.o#.bit_length() + self.o#.conjugate()", "m.o# = main.I#.B", top=_MEMBERS, init="self.o# = I#.A"),
    asking("place of a member", "[4, 5, 6][self.o#] + float(self.o#)", "m.o# = main.I#.B", top=_MEMBERS, init="self.o# = I#.A"),
    part("language / member that flags make", {"top": _FLAG % "BOTH", "body": "y = y * len((C#.A | C#.B).name)"}, sources={"name": {"top": _FLAG % "MANY_OF"}}),
)  # fmt: skip

_ENDS = "E# = []\nclass O#:\n    number = 3\n    def __del__(self): E#.append(1)\ndef used#(held):\n    number = held.number\n    del held\n    return number + len(E#)"
_REPLACED = "puts another object in place"
_ITEMS = "class O#(dict):\n    __getattr__ = dict.%s"
ITEMS = (
    asking("attribute that is an item", "self.o#.a + self.o#.b.a", "m.o#.b['a'] = 5", top=_ITEMS % "__getitem__", init="self.o# = O#(a=2, b=O#(a=3))"),
    asking("attribute that may be an item", "self.o#.a or 3", "m.o#['a'] = 5", top=_ITEMS % "get", init="self.o# = O#(b=2)"),
    asking("attribute of a dict before its item", "self.o#.a", "vars(m.o#)['a'] = 5", top=_ITEMS % "__getitem__", init="self.o# = O#(a=2)"),
)  # fmt: skip

ENDS = (
    asking("object that ends in the call", "used#(O#())", refused="__del__", top=_ENDS),
    asking("object that ends with its attribute", "2 if setattr(self, 'o#', None) is None and E# else 3", refused=_REPLACED, top=_ENDS, init="self.o# = O#()"),
    asking("object with an end", "self.o#.number", "m.o#.number = 4", top=_ENDS, init="self.o# = O#()"),
    asking("weak reference that the call makes", "2 if weakref.ref(K.Box())() is None else 3", refused="refers weakly"),
    asking("weak reference to what the call replaces", "2 if self.r#() and setattr(self, 'o#', None) is None and self.r#() is None else 3", refused=_REPLACED, init="self.o# = K.Box()\nself.r# = weakref.ref(self.o#)"),
)  # fmt: skip

_IMPORTS = "try:\n    import later#\n    y = y * 2\nexcept ImportError:\n    y = y * 3"
_INSTALLS = "if 'FUZZ#' in os.environ: sys.modules['later#'] = types.ModuleType('later#')"
_PUTS = "sys.modules['there#'] = types.ModuleType('there#')\nsys.modules['there#'].k = %d"
IMPORTS = (
    Part(
        name="language / module that the call imports", slots={"top": _INSTALLS, "body": _IMPORTS}, environment={"FUZZ#": "1"},
        changes=(Change(name="gone", environment={"FUZZ#": None}),), said="later0",
    ),
    Part(
        name="language / module that the call lacks", slots={"top": _INSTALLS, "body": _IMPORTS},
        changes=(Change(name="there", environment={"FUZZ#": "1"}),), said="later0",
    ),
    asking("member that the call lacks", "", "math.less# = 3", said="less0", body="try:\n    from math import less#\n    y = y * 2\nexcept ImportError:\n    y = y * 3"),
    asking("module that another one takes the place of", "", _PUTS % 7, said="k: 2 -> 7", top=_PUTS % 2, body="import there#\ny = y * there#.k"),
    asking("module that another one makes", "", "sys.modules['made#.one'] = sys.modules['made#'] = math", "sys.modules['made#.one'] = None", said="made0", body="try:\n    import made#.one\n    y = y * 2\nexcept ImportError:\n    y = y * 3"),
)  # fmt: skip

_KEEPS = "N# = 3\nL# = []\n@functools.lru_cache\ndef f#(n): return n * N#\n@functools.lru_cache\ndef g#(n): return (n, f#(n))\n@functools.lru_cache\ndef h#(n): return [n]\n@functools.lru_cache\ndef k#(n):\n    L#.append(n)\n    return n"
KEEPING = (
    asking("kept number", "f#(2)", "main.N# = 4", top=_KEEPS),
    asking("kept tuple", "g#(2)[1]", "main.N# = 4", top=_KEEPS),
    asking("kept list that the call changes", "3 if h#(2).append(1) is None else 2", refused="keeps its results", top=_KEEPS),
    asking("kept result whose making changes a list", "k#(2)", refused="keeps its results", top=_KEEPS),
)  # fmt: skip

_COUNTS = "class O#:\n    number = 1\n    def told(self): return self.number\n    @classmethod\n    def count(cls): cls.number += 1"
CLASSES = (
    *(
        asking(f"class that the call writes / {ask}", f"3 if O#.count() is None and {ask} else 2", refused="reads it of", top=_COUNTS, init="self.o# = O#()")
        for ask in ("self.o#.number", "self.o#.told()", "hasattr(self.o#, 'number')")
    ),
)  # fmt: skip

_BASES = "class Z#:\n    zero = 7\nclass A#(Z#):\n    number, zero = 2, 0\n    @property\n    def never(self): return False\nclass M#(A#): pass\nclass B#(M#):\n    number, zero, never = 3, 4, True\n    def of_base(self): return super().number\n    def none(self): return super().zero\n    def asked(self): return super().never"
BASES = (
    asking("data of a base / of a new object", "B#().of_base()", "main.A#.number = 7", top=_BASES),
    asking("data of a base / of an object", "self.o#.of_base()", "main.A#.number = 7", "main.M#.number = 9", top=_BASES, init="self.o# = B#()"),
    asking("data of a base / that is zero", "1 + self.o#.none()", "main.A#.zero = 5", top=_BASES, init="self.o# = B#()"),
    asking("data of a base / property", "2 if self.o#.asked() else 3", refused=r"super\(\)", top=_BASES, init="self.o# = B#()"),
)  # fmt: skip

_OF_CLASS = "class P#:\n    def __init__(self, f): self.f = f\n    def __get__(self, o, cls): return self.f(cls)\nclass C#:\n    base = 3\n    k = P#(lambda cls: cls.base * 2)\nclass D#(C#): pass"
_CHANGES = (
    "main.C#.base = 4",
    "main.C#.k = 9",
    "vars(main.C#)['k'].f = lambda cls: 8",
    "main.P#.__get__ = lambda own, o, cls: 11",
)
DESCRIPTORS = (
    asking("descriptor of a class", "2 if C#.k == 6 else C#.k", *_CHANGES, top=_OF_CLASS),
    asking("descriptor of a base class", "2 if D#.k == 6 else self.o#.k", *_CHANGES, top=_OF_CLASS, init="self.o# = D#()"),
)  # fmt: skip

_HELD = {
    "list": ("[2, 3]", "m.o#.append(1)", "append(4)"),
    "dict": ("dict(a=2)", "m.o#.update(b=1)", "update(z=4)"),
    "set": ("{2}", "m.o#.add(1)", "add(4)"),
    "deque": ("collections.deque([2], maxlen=3)", "m.o#.append(1)", "append(4)"),
    "deque's limit": (
        "collections.deque([2], maxlen=2)",
        "m.o# = collections.deque([2], maxlen=1)",
        "append(4)",
    ),
    "ordered dict": ("collections.OrderedDict(a=2)", "m.o#.update(b=1)", "update(z=4)"),
    "default dict": ("collections.defaultdict(int, a=2)", "m.o#.update(b=1)", "update(z=4)"),
}
COPIES = tuple(
    asking(f"copied / {kind} / {copied}", "", change, init=f"self.o# = {text}", body=f"o = copy.{copied}(self.o#)\no.{write}\ny = y * (len(o) + len(self.o#) * (type(o) is type(self.o#)))")
    for kind, (text, change, write) in _HELD.items() for copied in ("copy", "deepcopy")
)  # fmt: skip

_SIZED = "torch._check(x.shape[0] < self.n#, lambda: f'{x.shape} {self.n#}')"
_FAILS = "try:\n    y = y + torch.ones(self.n#, dtype=y.dtype).view(2, 2).sum()\nexcept RuntimeError%s:\n    y = y * %s"
_CASTS = "@torch.autocast('cpu', dtype=torch.bfloat16)\ndef f#(): return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype.itemsize"
_TYPED = "class T#(typing.TypedDict):\n    a: int"
_LIMITED = "self.o# = collections.deque([1, 2], maxlen=3)"
_PARAMETRIZED = "import torch.nn.utils.parametrize as P\nclass W#(nn.Module):\n    def forward(self, w): return w + w.t()\ndef made#():\n    made = nn.Linear(4, 4, dtype=torch.float64)\n    nn.init.normal_(made.weight)\n    return P.register_parametrization(made, 'weight', W#())"
USUAL = (
    asking("names that comprehensions bind", "", "m.n# = 4", init="self.n# = 3", body="out = [last := v * self.n# for v in (1, 2)]\ny = y * last + len([k for v in out if (k := v) > 3])"),
    asking("error of an operator", "", "m.n# = 4", init="self.n# = 3", body=_FAILS % ("", "3")),
    asking("error of a mask that does not fit", "", "m.n# = 2", init="self.n# = 3", body="try:\n    y = y + y.new_ones(2)[torch.ones(self.n#) > 0].sum()\nexcept IndexError:\n    y = y * 3"),
    asking("error of a number of many", "", refused="elements", body="try:\n    y = y * float(torch.ones(3))\nexcept ValueError:\n    y = y * 3"),
    asking("text of an operator's error", "", refused="operator's error", init="self.n# = 3", body=_FAILS % (" as e", "len(str(e))")),
    asking("error of a call that does not fit", "", top="def f#(x): return x * 2", body="try:\n    y = f#(y, mask=None)\nexcept TypeError:\n    y = f#(y) * 3"),
    asking("text of a call's error", "", refused="call's", top="def f#(x): return x * 2", body="try:\n    y = f#(y, mask=None)\nexcept TypeError as e:\n    y = f#(y) * len(str(e))"),
    asking("name that there is not", "", refused="no name flash", body="try:\n    y = flash#(y)\nexcept NameError:\n    y = y * 3"),
    asking("error of an operator that asks the data", "", refused="hangs on data", body="try:\n    y = y + torch.linalg.cholesky(y[:, :1] * y[:, :1].t()).sum()\nexcept RuntimeError:\n    y = y * 3"),
    asking("number that is checked", f"3 if {_SIZED} is None else 2", "m.n# = 900", init="self.n# = 1000"),
    asking("check of what is no condition", "", body="try:\n    torch._check(x.shape[0], lambda: 'small')\nexcept TypeError:\n    y = y * 3"),
    asking("error begun by its base's name", "", "m.n# = 11", top="class E#(ValueError):\n    def __init__(self, n):\n        ValueError.__init__(self, n, 'x')\n        self.n = n", init="self.n# = 2", body="try:\n    raise E#(self.n#)\nexcept ValueError as e:\n    y = y * (e.n + len(str(e)) * len(e.args))"),
    asking("text of a dataclass", "len(f'{self.o#} {T#(self.n#)!r}')", "m.o#.a = 77", "m.n# = 77", "m.o# = main.E#(2)", "main.T#.__repr__ = lambda self: 'short'", top="@dataclasses.dataclass\nclass T#:\n    a: int\n    b: str = 'x'\n@dataclasses.dataclass\nclass E#(T#):\n    q: int = 3", init="self.n# = 2\nself.o# = T#(3)"),
    asking("clock", "", refused="asks no clock", body="import time\ny = y * time.perf_counter()"),
    asking("number and class of an error", "", "m.n# = 17", init="self.n# = 2", body="try:\n    raise OSError(self.n#, 'gone', 'f')\nexcept FileNotFoundError as e:\n    y = y * (e.errno + len(e.args) + len(e.filename))\nexcept OSError as e:\n    y = y * (e.errno + len(type(e).__name__))"),
    asking("value that a generator returns", "", "m.n# = 3", top="def f#(n):\n    yield n\n    return n + 4", init="self.n# = 2", body="g = f#(self.n#)\ny = y * next(g)\ntry:\n    next(g)\nexcept StopIteration as e:\n    y = y * e.value"),
    asking("text of an error by its base", "", top="class E#(ValueError):\n    def __str__(self): return 'told ' + super().__str__()", body="try:\n    raise E#('x')\nexcept ValueError as e:\n    y = y * len(str(e))"),
    asking("text of a check that has none", "", init="self.n# = 3", body="try:\n    torch._check_index(self.n# > 3)\nexcept IndexError as e:\n    y = y * len(str(e))"),
    asking("tensor that is asserted", "", init="self.n# = 3", body="assert not torch.isnan(y).any() and (y < 9e9).all(), f'{y} {self.n#}'"),
    asking("assertion on data that is caught", "", refused="Data-dependent", body="try:\n    assert (y > 9e9).all(), 'small'\nexcept AssertionError:\n    y = y * 3"),
    asking("assertion that is caught", "", "m.n# = 4", init="self.n# = 3", body="try:\n    assert self.n# > 3, 'small'\nexcept AssertionError:\n    y = y * 3"),
    asking("casts around a function", "f#()", "main.f#.__closure__[0].cell_contents._enabled = False", said="_enabled", top=_CASTS),
    asking("parametrized weights within a call", "", "m.q# = m.p#", top=_PARAMETRIZED, init="self.p#, self.q# = made#(), made#()", body="with P.cached():\n    y = self.q#(self.p#(self.p#(y)))"),
    asking("kept context", "", init="self.o# = torch.no_grad()", body="with self.o#:\n    y = y * 2"),
    asking("largest by a key", "max(self.o#, key=lambda one: one.a).a", "m.o#[0].a = 9", init="self.o# = [K.Held(2), K.Held(5)]"),
    asking("default of several by a key", "", body="try:\n    y = y * max(2, 3, key=abs, default=4)\nexcept TypeError:\n    y = y * 5"),
    asking("product of what is generated", "math.prod(n + 1 for n in self.o#)", "m.o#.append(3)", init="self.o# = [2]"),
    asking("typed dict", "T#(a=self.n#)['a']", "m.n# = 4", init="self.n# = 3", top=_TYPED),
    asking("list that the call puts into itself", "", refused="into itself", init="self.o# = []", body="self.o#.append({'up': self.o#})"),
    asking("dict that the call puts into itself", "", refused="into itself", init="self.o# = {'a': 2}", body="del self.o#['a']\nself.o#['up'] = self.o#"),
    asking("deque with a limit that the call fills", "", "m.o#.clear()", init=_LIMITED, body="self.o#.append(4)\ny = y * (len(self.o#) + self.o#[0])"),
    asking("switch of attention", "2 if torch.backends.cuda.flash_sdp_enabled() else 3", "torch.backends.cuda.enable_flash_sdp(False)"),
    asking("switch of attention within its scope", "", "torch.backends.cuda.enable_math_sdp(False)", body="with nn.attention.sdpa_kernel(nn.attention.SDPBackend.FLASH_ATTENTION):\n    y = y * (2 if torch.backends.cuda.math_sdp_enabled() else 3)\ny = y * (2 if torch.backends.cuda.math_sdp_enabled() else 3)"),
    asking("number of threads", "torch.get_num_threads()", "torch.set_num_threads(torch.get_num_threads() + 1)", said="threads"),
)  # fmt: skip

LANGUAGE = (*COPIES, *USUAL, *ENUMS, *ITEMS, *ENDS, *IMPORTS, *KEEPING, *CLASSES, *BASES, *DESCRIPTORS)
