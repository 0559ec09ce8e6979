"""Two objects that are one, or two; classes, and objects whose attributes are walked."""

# ruff: noqa: E501 - a program's text in one line per part reads as a table

from __future__ import annotations

from collections.abc import Iterator

from tests.fuzz.program import Part, part

_MADE = {
    "list": "[1, 2]",
    "dict": "{'k': 1}",
    "set": "{1, 2}",
    "deque": "collections.deque([1, 2])",
    "tensor": "torch.ones(4, dtype=torch.float64)",
    "module": "nn.Linear(4, 4, dtype=torch.float64)",
    "object": "K.Held(1)",
    "dataclass": "K.Config()",
    "equal objects": "K.Equal(1)",
    "tuple of lists": "([1],)",
    "function": "(lambda y: y)",
    "namespace": "types.SimpleNamespace(a=1)",
}
# Statements before, slot, first and second object.
_HELD = {
    "attributes": ("", "init", "self.a#", "self.b#"),
    "attributes of an object": ("self.o# = K.Box()\n", "init", "self.o#.a", "self.o#.b"),
    "items": ("self.o# = {}\n", "init", "self.o#['a']", "self.o#['b']"),
    "globals": ("", "helper", "A#a", "A#b"),
    "attribute and global": ("", "init", "helper.A#", "self.b#"),
}


def _aliases(kind: str, text: str, *, same: bool) -> Iterator[Part]:
    """Two objects of a kind that are one, or two, and then the other way, in all places."""
    name, change = f"identity / {kind} / {'same' if same else 'distinct'}", "other identity"
    asked = "y = y * 2 + (3 if {} is {} else 11)"
    for place, (before, slot, a, b) in _HELD.items():
        begun = before if place == "attribute and global" else f"{before}{a} = {text}\n"
        one, two = f"{begun}{b} = {a}", f"{begun}{b} = {text}"
        first, second = (one, two) if same else (two, one)
        more = {"helper": f"A# = {text}"} if place == "attribute and global" else {}
        read = [f"helper.{each}" if slot == "helper" else each for each in (a, b)]
        target, value = [each.replace("self.", "m.") for each in (read[1], text if same else read[0])]
        yield part(
            f"{name} / {place}",
            {**more, slot: first, "body": asked.format(*read)},
            sources={change: {slot: second}},
            mutations={change: f"{target} = {value}"},
        )
    if kind not in ("module", "function", "object", "equal objects"):
        pairs = {True: f"*[{text}] * 2", False: f"{text}, {text}"}
        slots = {"params": "a#, b#", "args": pairs[same], "body": asked.format("a#", "b#")}
        yield part(f"{name} / arguments", slots, sources={change: {"args": pairs[not same]}})


IDENTITY = tuple(
    each for kind, text in _MADE.items() for same in (False, True) for each in _aliases(kind, text, same=same)
)


CLASSES = (
    part(
        "virtual subclass / registered",
        {"top": "class A#(K.Abstract):\n    pass", "init": "self.o# = K.Member()", "body": "y = y + (3 if isinstance(self.o#, A#) else 7)"},
        mutations={"registered": "main.A#.register(type(m.o#))"},
        sources={"registered": {"top": "class A#(K.Abstract):\n    pass\nA#.register(K.Member)"}},
    ),
    part(
        "virtual subclass / issubclass",
        {"top": "class A#(K.Abstract):\n    pass", "body": "y = y + (3 if issubclass(K.Member, A#) else 7)"},
        mutations={"registered": "main.A#.register(main.K.Member)"},
    ),
    part(
        "virtual subclass / of a layer",
        {"top": "class A#(K.Abstract):\n    pass", "init": "self.s# = nn.ReLU()", "body": "y = y + (3 if isinstance(self.s#, A#) else 7)"},
        mutations={"registered": "main.A#.register(nn.ReLU)"},
    ),
    part(
        "virtual subclass / collections.abc",
        {"init": "self.o# = K.Member()", "body": "y = y + (3 if isinstance(self.o#, collections.abc.Sequence) else 7)"},
        mutations={"registered": "collections.abc.Sequence.register(main.K.Member)"},
    ),
    part(
        "virtual subclass / protocol",
        {"init": "self.o# = K.Box()", "body": "y = y + (3 if isinstance(self.o#, K.Has) else 7)"},
        mutations={"member": "m.o#.size = 2", "member of the class": "main.K.Box.size = 3"},
        sources={"member": {"init": "self.o# = K.Box(); self.o#.size = 4"}},
    ),
    part(
        "virtual subclass / __instancecheck__",
        {"init": "self.o# = K.Box()", "body": "y = y + (3 if isinstance(self.o#, K.Counted) else 7)"},
        mutations={"attribute": "m.o#.counted = True"},
    ),
    part(
        "virtual subclass / __subclasshook__",
        {"top": "class A#(K.Abstract):\n    @classmethod\n    def __subclasshook__(cls, c):\n        return getattr(c, 'hooked#', False)", "init": "self.o# = K.Member()", "body": "y = y + (3 if isinstance(self.o#, A#) else 7)"},
        mutations={"attribute": "main.K.Member.hooked# = True"},
    ),
    part(
        "class / bases",
        {"top": "class D#(K.Left):\n    pass", "init": "self.o# = D#()", "body": "y = y + self.o#.size * 3 + (2 if isinstance(self.o#, K.Left) else 5) + len(type(self.o#).__mro__)"},
        sources={"another base": {"top": "class D#(K.Right):\n    pass"}, "two": {"top": "class D#(K.Right, K.Left):\n    pass"}},
        mutations={"assigned": "main.D#.__bases__ = (main.K.Right,)", "of the instance": "m.o#.__class__ = main.K.Right"},
    ),
    part(
        "class / of the module",
        {"top": "class D#(nn.Module):\n    v = 3\n    def forward(self, y):\n        return y * self.v\nclass E#(D#):\n    v = 5", "init": "self.s# = D#()", "body": "y = self.s#(y)"},
        sources={"another": {"init": "self.s# = E#()"}},
        mutations={"assigned": "m.s#.__class__ = main.E#", "method added": "main.D#.forward = lambda self, y: y * 11"},
    ),
    part(
        "class / method hidden by an attribute",
        {"fields": "def g#(self):\n    return 3", "body": "y = y + self.g#()"},
        mutations={"hidden": "m.g# = lambda: 7", "replaced": "main.Main.g# = lambda self: 9", "deleted": "del main.Main.g#"},
    ),
    part(
        "class / __getattr__ added",
        {"top": "class D#:\n    pass", "init": "self.o# = D#()", "body": "y = y + getattr(self.o#, 'zz', 3)"},
        mutations={"added": "main.D#.__getattr__ = lambda self, name: 7", "attribute": "main.D#.zz = 5", "to a base": "main.K.Base.zz = 1"},
    ),
    part(
        "class / operator added",
        {"top": "class D#:\n    pass", "init": "self.o# = D#()", "body": "y = y + (3 if self.o# else 7)"},
        mutations={"__bool__": "main.D#.__bool__ = lambda self: False", "__len__": "main.D#.__len__ = lambda self: 0"},
    ),
    part(
        "class / __call__ of a module",
        {"top": "class D#(nn.Module):\n    def forward(self, y):\n        return y * 3", "init": "self.s# = D#()", "body": "y = self.s#(y)"},
        mutations={"added": "main.D#.__call__ = lambda self, y: y * 7"},
    ),
    part(
        "class / iterated subclasses", {"top": "class D#:\n    pass\nclass E#(D#):\n    pass", "body": "y = y + len(D#.__subclasses__()) * 3"},
        mutations={"one more": "main.extra = type('F', (main.D#,), {})"},
    ),
    part(
        "enum / members", {"top": "class D#(enum.Enum):\n    A = 1\n    B = 4", "body": "y = y + len(D#) * 3 + D#.B.value + sum((i + 2) * e.value for i, e in enumerate(D#))"},
        sources={"one more": {"top": "class D#(enum.Enum):\n    A = 1\n    B = 4\n    C = 5"}, "order": {"top": "class D#(enum.Enum):\n    B = 4\n    A = 1"}},
    ),
    part(
        "object / vars walked", {"init": "self.o# = K.Box(); self.o#.a = 2; self.o#.b = 3", "body": "y = y + sum((i + 1) * v for i, v in enumerate(vars(self.o#).values()))"},
        mutations={"key": "m.o#.c = 5", "order": "m.o#.a = m.o#.__dict__.pop('a')", "value": "m.o#.b = 9", "gone": "del m.o#.a"},
    ),
    part(
        "object / __dict__ walked", {"init": "self.o# = types.SimpleNamespace(a=2, b=3)", "body": "for k#, v# in self.o#.__dict__.items():\n    y = y * 2 + v# + len(k#)"},
        mutations={"key": "m.o#.c = 5", "order": "m.o#.a = m.o#.__dict__.pop('a')", "name": "m.o#.cccc = m.o#.__dict__.pop('b')"},
    ),
    part(
        "object / namespace compared", {"init": "self.o# = types.SimpleNamespace(a=2)\nself.p# = types.SimpleNamespace(a=2)", "body": "y = y + (3 if self.o# == self.p# else 7)"},
        mutations={"value": "m.o#.a = 5", "key": "m.o#.b = 5"},
    ),
    part(
        "object / dir", {"init": "self.o# = K.Box()", "body": "y = y + len([n for n in dir(self.o#) if not n.startswith('_')]) * 3"},
        mutations={"attribute": "m.o#.c = 5", "of the class": "main.K.Box.c = 5"},
    ),
    part(
        "module / vars of a Python module", {"helper": "L#A = 2\nL#B = 3", "body": "y = y + sum(v for k, v in vars(helper).items() if k.startswith('L#'))"},
        mutations={"one more": "helper.L#C = 5", "value": "helper.L#A = 7"},
    ),
    part(
        "module / its place taken", {"helper": "L# = 3\ndef g#(y):\n    return y * L#", "init": "self.f# = helper.g#", "body": "y = self.f#(y)"},
        mutations={
            "by the same": "old = sys.modules.pop('fuzzed.helper'); __import__('fuzzed.helper'); old.L# = 7",
            "by another": "sys.modules['fuzzed.helper'] = types.SimpleNamespace(L#=3); helper.L# = 7",
        },
    ),
    part(
        "function / wrapped", {"top": "def g#(y):\n    return y * 3", "body": "y = g#(y)"},
        mutations={"replaced": "main.g# = lambda y: y * 7", "code": "main.g#.__code__ = (lambda y: y * 11).__code__", "defaults": "main.g#.__defaults__ = (1,)"},
    ),
    part(
        "function / replaced elsewhere", {"helper": "def g#(y):\n    return y * 3", "top": "from fuzzed.helper import g# as h#", "body": "y = h#(y) + helper.g#(y)"},
        mutations={"replaced there": "helper.g# = lambda y: y * 7", "replaced here": "main.h# = lambda y: y * 5"},
    ),
    part(
        "function / counted calls", {"init": "self.n# = 0", "body": "self.n# += 1\ny = y + self.n# * 3"}, mutations={"set": "m.n# = 10"},
    ),
    part(
        "list / appended in the function", {"init": "self.n# = []", "body": "self.n#.append(1)\ny = y + len(self.n#) * 3"}, mutations={"more": "m.n#.extend([1, 2])"},
    ),
    part(
        "attribute / made at first use", {"body": "if not hasattr(self, 'z#'):\n    self.z# = 3\ny = y + self.z#"}, mutations={"set": "m.z# = 8", "gone": "m.__dict__.pop('z#', None)"},
    ),
)  # fmt: skip
