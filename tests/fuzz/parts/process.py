"""State of the process: modes, environment, hash order."""

# ruff: noqa: E501 - a program's text in one line per part reads as a table

from __future__ import annotations

from tests.fuzz.program import part

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
        "process / modes",
        {"body": "y = torch.sin(y) * 3 + torch.ones_like(y)"},
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
        "process / patched torch",
        {"body": "y = torch.tanh(y) * 3 + F.gelu(y) + y.abs()"},
        mutations={
            "function of torch": "torch.tanh = torch.sin",
            "function of functional": "F.gelu = lambda y: y * 2",
            "method of Tensor": "torch.Tensor.abs = lambda self: self * 2",
        },
    ),
    part(
        "process / environment",
        {"body": "y = y + int(os.environ.get('FUZZ#', '3'))"},
        environments={"set": {"FUZZ#": "7"}},
    ),
    part(
        "process / environment, set",
        {"body": "y = y + int(os.environ['FUZZ#']) * 3"},
        environment={"FUZZ#": "2"},
        environments={"changed": {"FUZZ#": "7"}, "gone": {"FUZZ#": None}},
    ),
    part(
        "process / environment, getenv",
        {"body": "y = y + int(os.getenv('FUZZ#', '3'))"},
        environments={"set": {"FUZZ#": "7"}},
        mutations={"set later": "os.environ['FUZZ#'] = '9'"},
    ),
    part(
        "process / environment, in",
        {"body": "y = y + (3 if 'FUZZ#' in os.environ else 4)"},
        environments={"set": {"FUZZ#": "7"}},
        mutations={"set later": "os.environ['FUZZ#'] = '9'"},
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
