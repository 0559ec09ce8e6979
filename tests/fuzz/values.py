"""Values that a program's state holds: containers and objects of other values, and any value at random."""

# ruff: noqa: E501 - a program's text in one line per part reads as a table

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.fuzz.scalars import PLAIN, SCALARS, Value, integer


def _items(rng: Random, depth: int) -> tuple[list[Value], Value]:
    """Two or three members, and one of them."""
    members = [value(rng, depth + 1) if rng.random() < 0.4 else integer(rng, depth) for _ in range(3)]
    return members, members[1]


def _sequence(rng: Random, depth: int, kind: str, shape: str, *, changeable: bool) -> Value:
    members, one = _items(rng, depth)
    texts = [member.text for member in members]
    read = rng.choice(one.reads)
    whole = shape.replace("*", ", ".join(texts))
    others = [
        (f"member: {name}", shape.replace("*", ", ".join([texts[0], other, texts[2]])))
        for name, other in one.others[:3]
    ]
    others += [
        ("shorter", shape.replace("*", ", ".join(texts[:2]))),
        ("longer", shape.replace("*", ", ".join([*texts, "6"]))),
        ("order", shape.replace("*", ", ".join([texts[1], texts[0], texts[2]]))),
        ("tuple for it", f"({', '.join(texts)}, 4)"),
        ("list subclass for it", f"K.List([{', '.join(texts)}])"),
    ]  # fmt: skip
    reads = (
        read.replace("$", "$[1]"), read.replace("$", "[v for v in $][1]"), read.replace("$", "tuple($)[1]"),
        "(len($) + 2)", "(3 if $ else 4) + len($)",
        f"(3 if len($) > 2 else 4) + (2 if isinstance($, {kind}) else 9)", "sum(i for i, v in enumerate($))",
        "sum((i + 1) * (v if isinstance(v, int) else 3) for i, v in enumerate($))",
        "functools.reduce(lambda p, q: p * 2 + 1, $, 1)", "sum(2 for a, b in itertools.product($, $))",
        read.replace("$", "next(itertools.islice($, 1, None))"), "len(list(zip($, range(9))))",
        "len([*$, *$])", "len(list(reversed($))) + 1",
    )  # fmt: skip
    inplace: tuple[tuple[str, str], ...] = ()
    if changeable:
        inplace = (
            ("append", "$.append(6)"), ("remove the last", "$.pop()"),
            ("member set", f"$[1] = {one.others[0][1]}"), ("extend", "$.extend([2, 3])"),
            ("clear", "$.clear()"), ("reverse", "$.reverse()"),
        )  # fmt: skip
    return Value(kind=kind, text=whole, reads=reads, others=tuple(others), inplace=inplace)


def tuple_(rng: Random, depth: int) -> Value:
    return _sequence(rng, depth, "tuple", "(*)", changeable=False)


def list_(rng: Random, depth: int) -> Value:
    return _sequence(rng, depth, "list", "[*]", changeable=True)


def deque(rng: Random, depth: int) -> Value:
    return _sequence(rng, depth, "collections.deque", "collections.deque([*])", changeable=True)


def list_subclass(rng: Random, depth: int) -> Value:
    return _sequence(rng, depth, "K.List", "K.List([*])", changeable=True)


def user_list(rng: Random, depth: int) -> Value:
    return _sequence(rng, depth, "collections.UserList", "collections.UserList([*])", changeable=True)


_KEYS = ("'k'", "3", "torch.float32", "K.Color.RED", "(1, 2)", "None", "True", "int", "K.Level.LOW", "'_p0'")


def _mapping(rng: Random, depth: int, kind: str, shape: str) -> Value:
    members, one = _items(rng, depth)
    keys = rng.sample(_KEYS, 3)
    read = rng.choice(one.reads)

    def made(pairs: list[tuple[str, str]]) -> str:
        return shape.replace("*", "{" + ", ".join(f"{key}: {text}" for key, text in pairs) + "}")

    pairs = [(key, member.text) for key, member in zip(keys, members, strict=True)]
    others = [
        (f"member: {name}", made([pairs[0], (keys[1], other), pairs[2]])) for name, other in one.others[:3]
    ]
    others += [
        ("key gone", made([pairs[0], pairs[1]])), ("key more", made([*pairs, ("'more'", "6")])),
        ("order", made([pairs[1], pairs[0], pairs[2]])), ("order", made([pairs[0], pairs[2], pairs[1]])),
        ("key for another", made([pairs[0], pairs[1], ("'else'", pairs[2][1])])),
    ]  # fmt: skip
    absent = f"$.get({keys[2]}, 9)"
    counting = "(v if isinstance(v, int) else 3)"
    reads = (
        read.replace("$", f"$[{keys[1]}]"), read.replace("$", f"$.get({keys[1]}, 3)"),
        f"(3 if {keys[2]} in $ else 4)", f"(3 if isinstance({absent}, int) else 4) + len($)",
        f"sum((i + 1) * {counting} for i, v in enumerate($.values()))",
        f"sum((i + 1) * {counting} for i, (k, v) in enumerate($.items()))",
        f"(3 if next(iter($)) == {keys[0]} else 5)", f"(3 if list($)[-1] == {keys[2]} else 5)",
        "(len($) * 2 + 1)", "sum(1 for k in $.keys()) + 1",
        f"(3 if list($.keys()).index({keys[1]}) == 1 else 5)", "len({**$, 'q': 1})", "len(dict($)) + 3",
        "(7 if {'z': 1}.keys() & $.keys() else len($))", "(2 if type($) is dict else 3) + len($)",
        f"len($ | {{'more': 1}}) + ({keys[2]} in $)", "(3 if 'more' not in $ else 4)",
    )  # fmt: skip
    inplace = (
        ("key added", "$['more'] = 6"), ("key removed", f"del $[{keys[2]}]"),
        ("value set", f"$[{keys[1]}] = {one.others[0][1]}"),
        ("key moved to the end", f"$[{keys[0]}] = $.pop({keys[0]})"), ("update", "$.update(more=2)"),
    )  # fmt: skip
    return Value(kind=kind, text=made(pairs), reads=reads, others=tuple(others), inplace=inplace)


def dict_(rng: Random, depth: int) -> Value:
    return _mapping(rng, depth, "dict", "*")


def ordered_dict(rng: Random, depth: int) -> Value:
    return _mapping(rng, depth, "OrderedDict", "collections.OrderedDict(*)")


def default_dict(rng: Random, depth: int) -> Value:
    return _mapping(rng, depth, "defaultdict", "collections.defaultdict(int, *)")


def dict_subclass(rng: Random, depth: int) -> Value:
    return _mapping(rng, depth, "dict subclass", "K.Dict(*)")


def mapping_proxy(rng: Random, depth: int) -> Value:
    found = _mapping(rng, depth, "mappingproxy", "types.MappingProxyType(*)")
    return Value(kind=found.kind, text=found.text, reads=found.reads, others=found.others)


def _set(rng: Random, kind: str, shape: str, *, changeable: bool) -> Value:
    pool = rng.choice(
        [["2", "3", "5", "7"], ["'aa'", "'bbb'", "'cccc'", "'d'"], ["2", "'aa'", "None", "5.5"]]
    )
    a, b, c, d = rng.sample(pool, 4)
    reads = (
        f"(3 if {a} in $ else 4)", f"(3 if {d} in $ else 4)", "len($) * 2",
        f"(2 if $ == {{{a}, {b}, {c}}} else 3)",
        "functools.reduce(lambda p, q: p * 3 + (len(q) if isinstance(q, str) else 7), $, 1)",
        "sum((i + 1) * len(str(v)) for i, v in enumerate($))", "len(str(list($)[0]))", "len($ | {'q', 99})",
        f"len($ & {{{a}, {d}}}) + 1", "len(sorted(map(str, $))[0]) + 1", "(3 if $ else 4)",
        "(3 if isinstance($, frozenset) else 4)", "len(str(next(iter($))))",
        "len(str(max($, key=lambda v: len(str(v)))))",
    )  # fmt: skip
    others = (
        ("member gone", shape.replace("*", f"{{{a}, {b}}}")),
        ("member more", shape.replace("*", f"{{{a}, {b}, {c}, {d}}}")),
        ("member for another", shape.replace("*", f"{{{a}, {b}, {d}}}")),
        ("order of making", shape.replace("*", f"{{{c}, {b}, {a}}}")),
        ("frozenset", f"frozenset({{{a}, {b}, {d}}})"),
    )  # fmt: skip
    inplace = (("add", f"$.add({d})"), ("discard", f"$.discard({a})"), ("clear", "$.clear()"))
    return Value(
        kind=kind,
        text=shape.replace("*", f"{{{a}, {b}, {c}}}"),
        reads=reads,
        others=others,
        inplace=inplace if changeable else (),
    )


def set_(rng: Random, _depth: int) -> Value:
    return _set(rng, "set", "*", changeable=True)


def frozenset_(rng: Random, _depth: int) -> Value:
    return _set(rng, "frozenset", "frozenset(*)", changeable=False)


def record(rng: Random, depth: int) -> Value:
    """Objects with fields: dataclasses, named tuples, namespaces, plain ones."""
    one = value(rng, depth + 1)
    read = rng.choice(one.reads)
    kind, shape = rng.choice(
        [
            ("dataclass", "K.Config(size=*)"),
            ("frozen dataclass", "K.Frozen(size=*)"),
            ("slotted dataclass", "K.SlottedConfig(size=*)"),
            ("NamedTuple", "K.Pair(*)"),
            ("namedtuple", "K.Old(*, 'n')"),
            ("SimpleNamespace", "types.SimpleNamespace(size=*, name='n')"),
        ]
    )
    others = [(f"field: {name}", shape.replace("*", other)) for name, other in one.others[:4]]
    others += [("another class", "types.SimpleNamespace(size=4, name='n')"), ("another class", "K.Pair(4)")]
    reads = [
        read.replace("$", "$.size"), read.replace("$", "getattr($, 'size', 3)"),
        read.replace("$", "operator.attrgetter('size')($)"), "(3 if hasattr($, 'more') else 4)",
        "getattr($, 'more', 9)", "len(type($).__name__)",
        "(3 if isinstance($, (K.Config, K.Frozen, K.Pair)) else 5)",
    ]  # fmt: skip
    inplace: tuple[tuple[str, str], ...] = ()
    if "amed" not in kind:
        inplace = (
            ("field set", f"object.__setattr__($, 'size', {one.others[0][1]})"),
            ("attribute added", "object.__setattr__($, 'more', 6)"),
        )
        if "slotted" not in kind:
            reads += ["len(vars($))", "sum(len(k) for k in $.__dict__)", "(2 if 'more' in vars($) else 3)"]
            reads += ["sum(7 if k == 'more' else 1 for k, v in vars($).items())"]
            if kind != "SimpleNamespace":
                reads += ["len(dataclasses.asdict($)['name'])", "len(dataclasses.fields($))"]
                reads += [read.replace("$", "dataclasses.replace($, name='x').size")]
    else:
        reads += [read.replace("$", "$[0]"), "len($._fields[0])", read.replace("$", "[*$][0]")]
        reads += [read.replace("$", "$._replace(name='k').size")]
    return Value(
        kind=kind,
        text=shape.replace("*", one.text),
        reads=tuple(reads),
        others=tuple(others),
        inplace=inplace,
    )


def thing(rng: Random, depth: int) -> Value:
    """Instances of classes with methods, slots or a made-up attribute."""
    one = value(rng, depth + 1)
    read = rng.choice(one.reads)
    kind = rng.choice(["Held", "Slotted", "Dynamic", "Equal"])
    shape = "K.Dynamic(a=*)" if kind == "Dynamic" else f"K.{kind}(*)"
    reads = [
        read.replace("$", "$.a"),
        read.replace("$", "getattr($, 'a', 3)"),
        "(3 if hasattr($, 'b') else 4)",
    ]
    reads += ["helper.attempt($, 'b', 7)", "(3 if isinstance($, K.Held) else 4)"]
    if kind == "Held":
        reads += [read.replace("$", "$.get()"), read.replace("$", "$.prop"), "len(vars($)) + 1"]
    if kind == "Equal":
        reads += [f"(3 if $ == K.Equal({one.text}) else 5)"]
    inplace = [("attribute set", f"$.a = {one.others[0][1]}"), ("attribute added", "$.b = 6")]
    if kind == "Dynamic":
        inplace = [
            ("made-up attribute set", f"$.values['a'] = {one.others[0][1]}"),
            ("added", "$.values['b'] = 6"),
        ]
    others = [(f"attribute: {name}", shape.replace("*", other)) for name, other in one.others[:3]]
    return Value(
        kind=f"object {kind}",
        text=shape.replace("*", one.text),
        reads=tuple(reads),
        others=(*others, ("another class", "K.Held(5)")),
        inplace=tuple(inplace),
    )


_CONTAINERS: tuple[Callable[[Random, int], Value], ...] = (
    tuple_, list_, deque, list_subclass, user_list, dict_, dict_, list_, ordered_dict, default_dict, dict_subclass,
    mapping_proxy, set_, frozenset_, record, record, thing, thing,
)  # fmt: skip


def value(rng: Random, depth: int = 0) -> Value:
    """Any value; containers hold values down to a depth."""
    if depth < 2 and rng.random() < 0.5:
        return rng.choice(_CONTAINERS)(rng, depth)
    return rng.choice(SCALARS)(rng, depth)


def plain(rng: Random) -> Value:
    """A number, a text, a flag, None or a member of an enum."""
    return rng.choice(PLAIN)(rng, 0)
