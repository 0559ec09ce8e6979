"""Code that Dynamo traces, wherever Python lets it stand; state of the process."""

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


PROCESS = (
    part(
        "process / modes asked for",
        {"body": "y = y + (3 if torch.is_autocast_enabled('cpu') else 5) + (7 if torch.get_default_dtype() == torch.float32 else 11) + (13 if torch.are_deterministic_algorithms_enabled() else 17) + torch.ones(2).element_size() + (19 if torch.is_autocast_cache_enabled() else 23)"},
        contexts={
            "autocast": "torch.no_grad(), torch.autocast('cpu', torch.bfloat16)",
            "autocast off": "torch.no_grad(), torch.autocast('cpu', enabled=False)",
            "autocast without cache": "torch.no_grad(), torch.autocast('cpu', torch.bfloat16, cache_enabled=False)",
            "cache flag alone": "torch.no_grad(), torch.autocast('cpu', enabled=False, cache_enabled=False)",
            "inference mode": "torch.inference_mode()",
            "default device": "torch.no_grad(), torch.device('cpu')",
        },
        mutations={
            "default type": "torch.set_default_dtype(torch.float64)",
            "deterministic": "torch.use_deterministic_algorithms(True)",
            "autocast cache": "torch.set_autocast_cache_enabled(False)",
            "matmul precision": "torch.set_float32_matmul_precision('medium')",
            "threads": "torch.set_num_threads(1)",
            "autocast type": "torch.set_autocast_dtype('cpu', torch.float16)",
        },
    ),
    part(
        "process / autocast's product",
        {"init": "self.s# = nn.Linear(4, 4)", "body": "y = y + self.s#(y.float()).double() * 3"},
        contexts={
            "autocast": "torch.no_grad(), torch.autocast('cpu', torch.bfloat16)",
            "autocast in half": "torch.no_grad(), torch.autocast('cpu', torch.float16)",
        },
    ),
    part(
        "process / autocast in the function",
        {"init": "self.s# = nn.Linear(4, 4)\nself.k# = True", "body": "with torch.autocast('cpu', torch.bfloat16, enabled=self.k#):\n    y = y + self.s#(y.float()).double() * 3"},
        mutations={"off": "m.k# = False"},
        contexts={"autocast around it": "torch.no_grad(), torch.autocast('cpu', torch.bfloat16)"},
    ),
    part(
        "process / modes", {"body": "y = torch.sin(y) * 3 + torch.ones_like(y)"},
        contexts={
            "function mode": "torch.no_grad(), torch.overrides.BaseTorchFunctionMode()",
            "dispatch mode": "torch.no_grad(), __import__('torch.utils._python_dispatch').utils._python_dispatch.BaseTorchDispatchMode()",
            "doubling dispatch mode": "torch.no_grad(), scope.Doubling()",
            "doubling function mode": "torch.no_grad(), scope.DoublingFunctions()",
            "forward AD": "torch.no_grad(), torch.autograd.forward_ad.dual_level()",
        },
    ),
    part(
        "process / logger looked up",
        {"body": "import logging\ny = y + (3 if logging.getLogger('l#').isEnabledFor(10) else 7)"},
        mutations={"level": "__import__('logging').getLogger('l#').setLevel(10)", "off": "__import__('logging').disable(5)"},
    ),
    part(
        "process / patched torch", {"body": "y = torch.tanh(y) * 3 + F.gelu(y) + y.abs()"},
        mutations={
            "function of torch": "torch.tanh = torch.sin",
            "function of functional": "F.gelu = lambda y: y * 2",
            "method of Tensor": "torch.Tensor.abs = lambda self: self * 2",
        },
    ),
    part(
        "process / environment", {"body": "y = y + int(os.environ.get('FUZZ#', '3'))"},
        environments={"set": {"FUZZ#": "7"}},
    ),
    part(
        "process / environment, set", {"body": "y = y + int(os.environ['FUZZ#']) * 3"},
        environment={"FUZZ#": "2"}, environments={"changed": {"FUZZ#": "7"}, "gone": {"FUZZ#": None}},
    ),
    part(
        "process / environment, getenv", {"body": "y = y + int(os.getenv('FUZZ#', '3'))"},
        environments={"set": {"FUZZ#": "7"}}, mutations={"set later": "os.environ['FUZZ#'] = '9'"},
    ),
    part(
        "process / environment, in", {"body": "y = y + (3 if 'FUZZ#' in os.environ else 4)"},
        environments={"set": {"FUZZ#": "7"}}, mutations={"set later": "os.environ['FUZZ#'] = '9'"},
    ),
    part(
        "process / environment behind a function",
        {"helper": "from os import environ as env#\ndef f#(name):\n    return int(env#.get(name) or 3)", "body": "y = y + helper.f#('FUZZ#') * 2"},
        environments={"set": {"FUZZ#": "7"}},
    ),
    part(
        "process / environment with a name from state",
        {"init": "self.n# = 'FUZZ#'", "body": "y = y + int(os.environ.get(self.n#, '3'))"},
        environments={"set": {"FUZZ#": "7"}},
        mutations={"another name": "m.n# = 'FUZZX'; os.environ['FUZZX'] = '5'"},
    ),
    part(
        "process / environment at build",
        {"init": "self.n# = int(os.environ.get('FUZZ#', '3'))", "body": "y = y + self.n#"},
        environments={"set": {"FUZZ#": "7"}},
    ),
    part("process / hash order", {"helper": "S# = {'aa', 'bbb', 'cccc', 'ddddd'}", "body": "for i#, v# in enumerate(helper.S#):\n    y = y * 2 + len(v#)"}),
    part("process / hash order of an attribute", {"init": "self.s# = {'aa', 'bbb', 'cccc', 'ddddd'}", "body": "for v# in self.s#:\n    y = y * 2 + len(v#)"}),
    part("process / hash order of a local set", {"body": "for v# in {'aa', 'bbb', 'cccc', 'ddddd'}:\n    y = y * 2 + len(v#)"}),
    part("process / hash order made by operators", {"init": "self.s# = {'aa', 'bbb'}", "body": "for v# in self.s# | {'cccc', 'ddddd'}:\n    y = y * 2 + len(v#)"}),
    part("process / hash order made of a list", {"init": "self.s# = ['aa', 'bbb', 'cccc']", "body": "for v# in set(self.s#):\n    y = y * 2 + len(v#)"}),
    part("process / hash order in a tuple", {"init": "self.s# = {'aa', 'bbb', 'cccc', 'ddddd'}", "body": "y = y + [len(v) for v in tuple(self.s#)][0] * 3"}),
    part("process / hash", {"body": "y = y + hash('abc') % 97"}),
    part("process / hash of an attribute", {"init": "self.s# = 'abc'", "body": "y = y + hash(self.s#) % 97"}),
    part("process / hash of a tuple", {"init": "self.s# = ('abc', 1)", "body": "y = y + hash(self.s#) % 97"}),
    part("process / hash of a frozen dataclass", {"init": "self.s# = K.Frozen()", "body": "y = y + hash(self.s#) % 97"}),
    part("process / id", {"helper": "S# = [1]", "body": "y = y + id(helper.S#) % 97"}),
    part("process / pid", {"body": "y = y + os.getpid() % 97"}),
    part("process / address", {"helper": "S# = K.Box()", "body": "y = y + len(repr(helper.S#)) + hash(repr(helper.S#)) % 7"}),
    part("process / working directory", {"body": "y = y + len(os.getcwd())"}, mutations={"changed": "os.chdir('/')"}),
    part("process / time", {"helper": "import time", "body": "y = y + int(helper.time.time() * 1000) % 97"}),
    part("process / random of Python", {"helper": "import random", "body": "y = y + helper.random.randint(0, 1000)"}),
    part("process / version", {"body": "y = y + len(torch.__version__) + sys.version_info[1]"}),
    part("process / recursion limit", {"body": "y = y + sys.getrecursionlimit()"}, mutations={"set": "sys.setrecursionlimit(1234)"}),
    part("process / modules", {"body": "y = y + (3 if 'tabnanny' in sys.modules else 4)"}, mutations={"imported": "import tabnanny"}),
)  # fmt: skip
