"""Code that Dynamo traces, wherever Python lets it stand."""

# ruff: noqa: E501 - a program's text in one line per part reads as a table

from __future__ import annotations

from tests.fuzz.program import Part, Slots, part


def _code(name: str, slot: str, text: str, use: str, **slots: str) -> Part:
    """Code that holds the constant ``NNN``; other code is another constant, operator or order."""

    def made(replaced: str) -> Slots:
        return {slot: replaced, "body": use, **slots}

    return part(
        f"code / {name}",
        made(text.replace("NNN", "3")),
        sources={
            "constant": {slot: text.replace("NNN", "5")},
            "operator": {slot: text.replace("* NNN", "+ 3")},
            "sign": {slot: text.replace("NNN", "-3")},
            "type": {slot: text.replace("NNN", "3.5")},
        },
    )


CODE = (
    _code("function", "top", "def f#(y):\n    return y * NNN", "y = f#(y)"),
    _code("function of another module", "helper", "def f#(y):\n    return y * NNN", "y = helper.f#(y)"),
    _code("function of a third module", "conf", "def f#(y):\n    return y * NNN", "y = helper.conf.f#(y)"),
    _code("lambda", "top", "f# = lambda y: y * NNN", "y = f#(y)"),
    _code("lambda in a list", "top", "f# = [lambda y: y, lambda y: y * NNN]", "y = f#[1](y)"),
    _code("lambda in a dict attribute", "init", "self.f# = {'k': lambda y: y * NNN}", "y = self.f#['k'](y)"),
    _code("lambda attribute", "init", "self.f# = lambda y: y * NNN", "y = self.f#(y)"),
    _code("method", "fields", "def f#(self, y):\n    return y * NNN", "y = self.f#(y)"),
    _code("static method", "fields", "@staticmethod\ndef f#(y):\n    return y * NNN", "y = self.f#(y)"),
    _code("class method", "fields", "@classmethod\ndef f#(cls, y):\n    return y * NNN", "y = self.f#(y)"),
    _code("property", "fields", "@property\ndef f#(self):\n    return 2 * NNN", "y = y + self.f#"),
    _code("cached property", "fields", "@functools.cached_property\ndef f#(self):\n    return 2 * NNN", "y = y + self.f#"),
    _code("generator method", "fields", "def f#(self, y):\n    for i in range(2):\n        yield y * NNN", "y = sum(self.f#(y), y)"),
    _code("nested function", "fields", "def f#(self, y):\n    def inner(z):\n        return z * NNN\n    return inner(y)", "y = self.f#(y)"),
    _code("method of a base class", "top", "class B#(nn.Module):\n    def forward(self, y):\n        return y * NNN\nclass C#(B#):\n    pass", "y = self.s#(y)", init="self.s# = C#()"),
    _code("method through super", "top", "class B#(nn.Module):\n    def forward(self, y):\n        return y * NNN\nclass C#(B#):\n    def forward(self, y):\n        return super().forward(y) + 1", "y = self.s#(y)", init="self.s# = C#()"),
    _code("mixin", "top", "class B#:\n    def f(self, y):\n        return y * NNN\nclass C#(B#, nn.Module):\n    def forward(self, y):\n        return self.f(y)", "y = self.s#(y)", init="self.s# = C#()"),
    _code("submodule", "top", "class C#(nn.Module):\n    def forward(self, y):\n        return y * NNN", "y = self.s#(y)", init="self.s# = nn.Sequential(nn.Identity(), C#())"),
    _code("__call__ of an object", "top", "class C#:\n    def __call__(self, y):\n        return y * NNN", "y = self.o#(y)", init="self.o# = C#()"),
    _code("__getattr__ of an object", "top", "class C#:\n    def __getattr__(self, name):\n        return 2 * NNN", "y = y + self.o#.zzz", init="self.o# = C#()"),
    _code("__getattribute__ of an object", "top", "class C#:\n    def __getattribute__(self, name):\n        return 2 * NNN", "y = y + self.o#.zzz", init="self.o# = C#()"),
    _code("__getitem__", "top", "class C#:\n    def __getitem__(self, i):\n        return 2 * NNN", "y = y + self.o#[1]", init="self.o# = C#()"),
    _code("__len__", "top", "class C#:\n    def __len__(self):\n        return abs(int(2 * NNN))", "y = y + len(self.o#)", init="self.o# = C#()"),
    _code("__bool__", "top", "class C#:\n    def __bool__(self):\n        return 1 * NNN > 4", "y = y + (3 if self.o# else 7)", init="self.o# = C#()"),
    _code("__eq__", "top", "class C#:\n    def __eq__(self, other):\n        return 1 * NNN > 4\n    __hash__ = None", "y = y + (3 if self.o# == 1 else 7)", init="self.o# = C#()"),
    _code("__contains__", "top", "class C#:\n    def __contains__(self, item):\n        return 1 * NNN > item", "y = y + (3 if 4 in self.o# else 7)", init="self.o# = C#()"),
    _code("__iter__", "top", "class C#:\n    def __iter__(self):\n        return iter([1, 2 * NNN])", "y = y + sum(self.o#)", init="self.o# = C#()"),
    _code("__add__", "top", "class C#:\n    def __add__(self, other):\n        return other * NNN", "y = self.o# + y", init="self.o# = C#()"),
    _code("__enter__", "top", "class C#:\n    def __enter__(self):\n        return 2 * NNN\n    def __exit__(self, *a):\n        pass", "with C#() as v#:\n    y = y + v#"),
    _code("context manager from a generator", "helper", "import contextlib\n@contextlib.contextmanager\ndef f#():\n    yield 2 * NNN", "with helper.f#() as v#:\n    y = y + v#"),
    _code("__torch_function__", "top", "class C#:\n    @classmethod\n    def __torch_function__(cls, func, types, args=(), kwargs=None):\n        return args[1] * NNN", "y = torch.add(self.o#, y)", init="self.o# = C#()"),
    _code("autograd function", "top", "class C#(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, y):\n        return y * NNN\n    @staticmethod\n    def backward(ctx, g):\n        return g", "y = C#.apply(y)"),
    _code("descriptor", "top", "class P#:\n    def __get__(self, owner, kind=None):\n        return 2 * NNN", "y = y + self.p#", fields="p# = P#()"),
    _code("decorator", "helper", "def times#(f):\n    @functools.wraps(f)\n    def inner(y):\n        return f(y) * NNN\n    return inner", "y = f#(y)", top="@helper.times#\ndef f#(y):\n    return y + 1"),
    _code("class decorator", "helper", "def times#(c):\n    c.f = lambda self, y: y * NNN\n    return c", "y = self.o#.f(y)", top="@helper.times#\nclass C#:\n    pass", init="self.o# = C#()"),
    _code("made by exec", "top", "S#: dict = {}\nexec('def f(y):\\n    return y * NNN', S#)", "y = S#['f'](y)"),
    _code("made by eval", "init", "self.f# = eval('lambda y: y * NNN')", "y = self.f#(y)"),
    _code("sort key", "helper", "def f#(v):\n    return abs(v - 1 * NNN)", "y = y + sorted([1, 3, 5, 9, -3], key=helper.f#)[0]"),
    _code("mapped function", "helper", "def f#(v):\n    return v * NNN", "y = y + sum(map(helper.f#, [1, 2]))"),
    _code("reducing function", "helper", "def f#(p, q):\n    return p * NNN + q", "y = y + functools.reduce(helper.f#, [1, 2, 5])"),
    _code("function stored in a class", "top", "class C#:\n    f = staticmethod(lambda y: y * NNN)", "y = C#.f(y)"),
    _code("method bound to an instance", "init", "self.f# = types.MethodType(lambda self, y: y * NNN, self)", "y = self.f#(y)"),
    _code("forward of a layer replaced", "init", "self.s# = nn.ReLU()\nself.s#.forward = lambda y: y * NNN", "y = self.s#(y)"),
    _code("forward hook", "init", "self.s# = nn.Identity()\nself.s#.register_forward_hook(lambda m, a, o: o * NNN)", "y = self.s#(y)"),
    _code("forward pre-hook", "init", "self.s# = nn.Identity()\nself.s#.register_forward_pre_hook(lambda m, a: (a[0] * NNN,))", "y = self.s#(y)"),
    _code("__init__ made by a dataclass", "top", "@dataclasses.dataclass\nclass C#:\n    v: int = 2 * NNN", "y = y + C#().v"),
    _code("__post_init__", "top", "@dataclasses.dataclass\nclass C#:\n    v: int = 1\n    def __post_init__(self):\n        self.v = 2 * NNN", "y = y + C#().v"),
    _code("default factory", "top", "@dataclasses.dataclass\nclass C#:\n    v: list = dataclasses.field(default_factory=lambda: [2 * NNN])", "y = y + C#().v[0]"),
    _code("default of a named tuple", "top", "class C#(typing.NamedTuple):\n    v: float = 2 * NNN", "y = y + C#().v"),
    _code("enum", "top", "class C#(enum.Enum):\n    A = 2 * NNN", "y = y + C#.A.value"),
    _code("__init__ in forward", "top", "class C#:\n    def __init__(self, v):\n        self.v = v * NNN", "y = y + C#(2).v"),
    _code("__new__ in forward", "top", "class C#:\n    def __new__(cls, v):\n        o = super().__new__(cls)\n        o.v = v * NNN\n        return o", "y = y + C#(2).v"),
    _code("__setattr__ in forward", "top", "class C#:\n    def __setattr__(self, n, v):\n        object.__setattr__(self, n, v * NNN)", "c# = C#()\nc#.v = 2\ny = y + c#.v"),
    _code("comparison in a match", "top", "def f#(v):\n    match v:\n        case 1:\n            return 2 * NNN\n        case _:\n            return 9", "y = y + f#(1)"),
    _code("exception handler", "top", "def f#():\n    try:\n        raise KeyError(1)\n    except KeyError:\n        return 2 * NNN", "y = y + f#()"),
    _code("cached function of functools", "top", "@functools.lru_cache\ndef f#():\n    return 2 * NNN", "y = y + f#()"),
    _code("singledispatch", "top", "@functools.singledispatch\ndef f#(v):\n    return 2 * NNN", "y = y + f#(1)"),
    _code("partialmethod", "fields", "def g#(self, y, k):\n    return y * k\nf# = functools.partialmethod(g#, k=1 * NNN)", "y = self.f#(y)"),
    _code("__mro_entries__ and subclass hook", "top", "class B#:\n    def __init_subclass__(cls):\n        cls.v = 2 * NNN\nclass C#(B#):\n    pass", "y = y + C#.v"),
    _code("vmap in the function", "top", "def f#(row):\n    return row * NNN", "y = torch.vmap(f#)(y)"),
    _code("torch.where arm", "top", "def f#(y):\n    return torch.where(y > 1, y * NNN, y)", "y = f#(y)"),
)  # fmt: skip
