"""Values of programs: numbers, texts, functions, tensors; containers and objects of other values.

In `Value.reads`, `Value.others` and `Value.inplace` the text ``$`` stands for the value.
"""

# ruff: noqa: E501 - a program's text in one line per part reads as a table

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random


@dataclass(frozen=True, slots=True)
class Value:
    """A Python value as text.

    Attributes:
        kind: what it is.
        text: expression that makes it.
        reads: expressions that make a number or a tensor of it; ``y`` is the tensor so far.
        others: what else it could be: (change, expression).
        inplace: how it changes in place: (change, statement).
    """

    kind: str
    text: str
    reads: tuple[str, ...]
    others: tuple[tuple[str, str], ...]
    inplace: tuple[tuple[str, str], ...] = ()


def two(rng: Random, low: int = 2, high: int = 9) -> tuple[int, int]:
    a, b = rng.sample(range(low, high + 1), 2)
    return a, b


def integer(rng: Random, _depth: int) -> Value:
    a, b = two(rng)
    middle = (a + b) / 2
    reads = (
        "$", "($ * 3 + 1)", f"(7 if $ > {middle} else 11)", "len(range($))", "sum(range($))",
        "((5 if isinstance($, bool) else 3) + $)", "((2 if type($) is int else 4) * $)",
        "(y.shape[0] % ($ + 2) + $)", "(17 // $)", "max($, y.shape[0])", "math.sqrt($)",
        "round($ / 2 + 0.1, 1)", "[2, 3, 5, 7, 11, 13, 17, 19, 23, 29][$]", "divmod(37, $)[1]",
        "torch.arange($ + 1).sum()", "torch.full((), float($), dtype=torch.float64)", "len('ab' * $)",
        "(1 << $)", "int('{}1'.format($))", "y.new_ones($).sum()", f"(3 if $ == {a} else 5)",
        f"(3 if $ in (1, {a}) else 5)", "len(str($ * 7))", "sum(1 for i in range(12) if i % $)",
        "functools.reduce(lambda p, q: p * 2 + q, range($), 1)", "F.pad(y, (0, $)).shape[1]",
        "y.repeat($, 1).sum()",
    )  # fmt: skip
    others = (
        ("number", str(b)), ("number", str(b)), ("float", f"{a}.0"), ("float", f"{b}.5"), ("bool", "True"),
        ("subclass", f"K.Int({b})"), ("numpy", f"np.int64({b})"), ("sign", str(-b)),
    )  # fmt: skip
    return Value("int", str(a), reads, others)


def number(rng: Random, _depth: int) -> Value:
    a, b = two(rng)
    reads = (
        "$", "($ * 2 + 1)", f"(7 if $ > {(a + b) / 2 + 0.25} else 11)", "int($ * 4)", "math.floor($)",
        "round($)", "math.sqrt($)", "((2 if isinstance($, float) else 4) + $)",
        "torch.full((), $, dtype=torch.float64)", "(y * $).sum()", "len(str($))",
        "int($.is_integer()) if hasattr($, 'is_integer') else 3",
        "torch.tensor([$], dtype=torch.float64).sum()",
    )  # fmt: skip
    others = (
        ("number", f"{b}.25"), ("integer", str(a)), ("sign", f"-{a}.25"), ("nan", "float('nan')"),
        ("infinity", "float('inf')"), ("subclass", f"K.Float({b}.25)"), ("numpy", f"np.float32({b}.25)"),
        ("tiny step", f"math.nextafter({a}.25, 10) + 1e-9"),
    )  # fmt: skip
    return Value("float", f"{a}.25", reads, others)


def boolean(rng: Random, _depth: int) -> Value:
    a = rng.choice(["True", "False"])
    other = "False" if a == "True" else "True"
    reads = (
        "(3 if $ else 5)", "($ + 2)", "(not $) * 7", "(2 if $ is True else 3)", "($ and 3 or 4)",
        "(3 if $ == 1 else 4)", "len(str($))", "(torch.relu(y) if $ else y * 3).sum()",
        "(7 if isinstance($, bool) else 8)", "torch.where(torch.tensor($), y, y * 2).sum()",
    )  # fmt: skip
    number = str(int(a == "True"))
    return Value("bool", a, reads, (("flag", other), ("integer", number), ("None", "None"), ("other", "'x'")))


def text(rng: Random, _depth: int) -> Value:
    a, b = rng.sample(["alpha", "be", "gamma_ray", "delta", "epsilon", "z"], 2)
    reads = (
        "len($)", f"(3 if $ == '{a}' else 5)", "(3 if $.startswith('" + a[0] + "') else 5)",
        "sum(map(ord, $))", "(3 if 'e' in $ else 4)", "{'" + a + "': 3}.get($, 8)",
        "len($.upper().split('A'))", "len('{}-{}'.format($, $))", "(3 if $ in ('" + a + "', 'q') else 4)",
        "ord($[0])", "(2 if isinstance($, str) else 3) + len($)", "(3 if re.match('[a-c]', $) else 4)",
        "getattr(torch, {'" + a + "': 'relu'}.get($, 'tanh'))(y).sum()", "len(sorted(set($)))",
    )  # fmt: skip
    others = (("text", repr(b)), ("text", repr(b)), ("subclass", f"K.Str({b!r})"), ("empty", repr(b[0])))
    return Value("str", repr(a), reads, others)


def nothing(rng: Random, _depth: int) -> Value:
    reads = (
        "(3 if $ is None else 5)", "(3 if $ else 5)", "(0 if $ is None else 2 + $)",
        "(3 if $ == None else 4)", "len([v for v in ($,) if v is not None])",
    )  # fmt: skip
    return Value("None", "None", reads, (("number", "4"), ("flag", "True")))


def member_of_enum(rng: Random, _depth: int) -> Value:
    kind, a, b = rng.choice(
        [("Color", "RED", "BLUE"), ("Level", "LOW", "HIGH"), ("Flags", "ONE", "FOUR"), ("Text", "A", "B")]
    )
    reads = (
        f"(3 if $ is K.{kind}.{a} else 5)", f"(3 if $ == K.{kind}.{a} else 5)", "len($.name)",
        "len(str($.value) * 2)" if kind == "Text" else "($.value + 1)",
        f"{{K.{kind}.{a}: 3, K.{kind}.{b}: 7}}[$]", f"(2 if $ in (K.{kind}.{b},) else 9)",
        f"(2 if isinstance($, K.{kind}) else 9)",
    )  # fmt: skip
    return Value(
        f"enum {kind}",
        f"K.{kind}.{a}",
        reads,
        (("member", f"K.{kind}.{b}"), ("member", f"K.{kind}.{b}"), ("another enum", "K.Color.BLUE")),
    )


def sized(rng: Random, _depth: int) -> Value:
    a, b = two(rng)
    reads = ("len($)", "(3 if $ else 4)", "$[2]", "(5 if 4 in $ else 6)", "sum($)", "($ + 3)")
    return Value(
        "object with operators",
        f"K.Sized({a})",
        reads,
        (("attribute", f"K.Sized({b})"),),
        (("attribute set", f"$.n = {b}"),),
    )


def function(rng: Random, _depth: int) -> Value:
    a, b = two(rng)
    forms = [
        ("function", "K.double", "K.triple"),
        ("lambda", f"(lambda y: y * {a})", f"(lambda y: y * {b})"),
        ("partial", f"functools.partial(K.multiplied, by={a})", f"functools.partial(K.multiplied, by={b})"),
        ("partial", f"functools.partial(torch.mul, {a})", f"functools.partial(torch.add, {a})"),
        ("bound method", f"K.Called({a}).__call__", f"K.Called({b}).__call__"),
        ("callable object", f"K.Called({a})", f"K.Called({b})"),
        ("function of torch", "torch.sin", "torch.cos"),
        ("function of torch", "F.relu", "F.silu"),
        ("module", "nn.ReLU()", "nn.SiLU()"),
        ("class", "K.Int", "K.Float"),
        ("function of operator", "operator.neg", "operator.abs"),
        ("operator", "torch.ops.aten.sin.default", "torch.ops.aten.cos.default"),
        ("itemgetter", "operator.itemgetter(0)", "operator.itemgetter(1)"),
        ("methodcaller", "operator.methodcaller('sin')", "operator.methodcaller('cos')"),
        ("method of Tensor", "torch.Tensor.sin", "torch.Tensor.cos"),
    ]
    kind, one, other = rng.choice(forms)
    reads: tuple[str, ...] = ("$(y).sum()", "torch.sum($(y + 1))", "sum(f(y).sum() for f in [$])")
    if kind == "class":
        reads = ("$(7.5)", "(3 if $ is K.Int else 4)", "(2 if issubclass($, int) else 3)", "len($.__name__)")
    elif kind == "callable object":
        inplace = (("attribute set", f"$.a = {b}"),)
        return Value(kind, one, reads, (("another", other),), inplace)
    elif kind == "function":
        reads = (*reads, "(3 if $ is K.double else 4)", "len($.__name__ * 2)", "getattr($, 'mark', 9)")
    return Value(kind, one, reads, (("another", other), ("function", "torch.tanh")))


def of_torch(rng: Random, _depth: int) -> Value:
    forms: list[tuple[str, str, str, tuple[str, ...]]] = [
        ("dtype", "torch.float32", "torch.float64", ("torch.ones(2, dtype=$).element_size()",)),
        ("dtype", "torch.int32", "torch.float16", ("(3 if $.is_floating_point else 4)", "$.itemsize")),
        ("Size", "torch.Size([2, 3])", "torch.Size([3, 4])", ("y.new_ones($).sum()", "$[0]", "$.numel()")),
        ("device", "torch.device('cpu')", "torch.device('meta')", ("(3 if $.type == 'cpu' else 4)",)),
        (
            "memory format",
            "torch.contiguous_format",
            "torch.channels_last",
            (
                "(3 if $ == torch.channels_last else 4)",
                "torch.ones(1, 2, 3, 3).to(memory_format=$).stride(1)",
            ),
        ),
        ("range", "range(3)", "range(1, 6, 2)", ("sum($)", "len($)", "$[1]")),
        ("slice", "slice(0, 2)", "slice(1, 4, 2)", ("y[:, $].sum()", "$.stop", "sum([1, 2, 4, 8][$])")),
        ("pattern", "re.compile('a+')", "re.compile('b')", ("(3 if $.match('aab') else 4)",)),
        ("bytes", "b'ab'", "b'abcd'", ("len($)", "$[-1]")),
        ("complex", "(1+2j)", "(3+2j)", ("$.real", "abs($)", "(y * $).real.sum()")),
        ("Fraction", "fractions.Fraction(1, 2)", "fractions.Fraction(3, 2)", ("float($)", "$.numerator")),
        ("Counter", "collections.Counter('aab')", "collections.Counter('ab')", ("$['a']", "len($)")),
        ("module", "math", "operator", ("(3 if hasattr($, 'sqrt') else 4)", "len($.__name__)")),
        ("class", "K.Left", "K.Right", ("$.size", "(3 if $ is K.Left else 4)", "$().size")),
        ("weakref", "weakref.ref(K.Left)", "weakref.ref(K.Right)", ("$().size",)),
        ("ellipsis", "...", "None", ("(3 if $ is ... else 4)",)),
    ]
    kind, one, other, reads = rng.choice(forms)
    return Value(kind, one, reads, (("another", other), ("another", other)))


def numpy(rng: Random, _depth: int) -> Value:
    a, b = two(rng)
    of_array = (
        "$[0]",
        "torch.from_numpy($).sum()",
        "$.shape[0]",
        "float($.sum())",
        "(y * torch.tensor($)).sum()",
    )
    forms: list[tuple[str, str, tuple[str, ...], dict[str, str]]] = [
        ("np scalar", f"np.int64({a})", ("$", "int($)", f"(3 if $ > {(a + b) / 2} else 4)", "(y * $).sum()", "$.item()"),
         {"number": f"np.int64({b})", "type": f"np.int32({b})", "python": str(b)}),
        ("np array", f"np.array([{a}.0, 2.0, 3.0, 1.0])", of_array,
         {"value": f"np.array([{b}.0, 2.0, 3.0, 1.0])", "shape": "np.ones(3)", "type": "np.ones(4, 'f4')"}),
        ("np float", f"np.float64({a}.5)", ("$", "float($)", "(y * float($)).sum()"),
         {"number": f"np.float64({b}.5)", "python": f"{b}.5", "type": f"np.float32({b}.5)"}),
        ("np bool", "np.bool_(True)", ("(3 if $ else 4)", "int($)"), {"flag": "np.bool_(False)"}),
        ("np dtype", "np.dtype('float32')", ("$.itemsize", "(3 if $ == np.float32 else 4)"), {"another": "np.dtype('float64')"}),
    ]  # fmt: skip
    kind, text, reads, others = rng.choice(forms)
    inplace = (("value set", f"$[0] = {b}"),) if kind == "np array" else ()
    return Value(kind, text, reads, tuple(others.items()), inplace)


def tensor(rng: Random, _depth: int) -> Value:
    a, b = two(rng)
    reads = (
        "$.sum()", "($ * y[0, 0]).sum()", "$.shape[0]", "$.dim()", "(3 if $.dtype == torch.float64 else 4)",
        "(3 if $.requires_grad else 4)", "(3 if $.is_contiguous() else 4)", "$.stride(0)",
        "$.element_size()", "($.reshape(-1) * 2).sum()", "(3 if isinstance($, nn.Parameter) else 4)",
        "$.storage_offset()", "(3 if hasattr($, 'note') else 4)", "len($)",
    )  # fmt: skip
    others = (
        ("value", f"torch.full((2, 3), {b}.0, dtype=torch.float64)"),
        ("type", f"torch.full((2, 3), {a}.0)"),
        ("shape", f"torch.full((3, 2), {a}.0, dtype=torch.float64)"),
        ("rank", f"torch.full((6,), {a}.0, dtype=torch.float64)"),
        ("strides", f"torch.full((3, 2), {a}.0, dtype=torch.float64).t()"),
        ("parameter", f"nn.Parameter(torch.full((2, 3), {b}.0, dtype=torch.float64), requires_grad=False)"),
        ("view", f"torch.full((4, 3), {b}.0, dtype=torch.float64)[1:3]"),
        ("expanded", f"torch.full((1, 3), {b}.0, dtype=torch.float64).expand(2, 3)"),
    )
    inplace = (
        ("filled", f"$.fill_({b})"), ("transposed", "$.t_()"),
        ("data of another type", "$.data = $.data.float()"),
        ("data of another shape", "$.data = $.data[:1]"), ("data transposed", "$.data = $.data.t()"),
        ("attribute added", "$.note = 3"),
    )  # fmt: skip
    return Value("tensor", f"torch.full((2, 3), {a}.0, dtype=torch.float64)", reads, others, inplace)


def subclass(rng: Random, _depth: int) -> Value:
    a, b = two(rng)
    kind = rng.choice(["Int", "Float", "Str"])
    if kind == "Str":
        return Value(
            "str subclass",
            "K.Str('ab')",
            ("len($)", "(3 if $ == 'ab' else 4)", "(2 if type($) is str else 7)"),
            (("text", "K.Str('abc')"), ("plain", "'ab'")),
        )
    return Value(
        f"{kind} subclass",
        f"K.{kind}({a})",
        ("$", "($ + 1)", f"(3 if $ > {(a + b) / 2} else 4)", "(2 if type($) in (int, float) else 7)"),
        (("number", f"K.{kind}({b})"), ("plain", str(a)), ("plain", str(b))),
    )


PLAIN: tuple[Callable[[Random, int], Value], ...] = (integer, number, boolean, text, nothing, member_of_enum)
SCALARS = (*PLAIN, integer, integer, number, of_torch, function, tensor, numpy, subclass, sized)


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
    return Value(kind, whole, reads, tuple(others), inplace)


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
    return Value(kind, made(pairs), reads, tuple(others), inplace)


def _mapping_proxy(rng: Random, depth: int) -> Value:
    return replace(_mapping(rng, depth, "mappingproxy", "types.MappingProxyType(*)"), inplace=())


def _set(rng: Random, _depth: int, kind: str, shape: str, *, changeable: bool) -> Value:
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
    return Value(kind, shape.replace("*", f"{{{a}, {b}, {c}}}"), reads, others, inplace if changeable else ())


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
    return Value(kind, shape.replace("*", one.text), tuple(reads), tuple(others), inplace)


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
        f"object {kind}",
        shape.replace("*", one.text),
        tuple(reads),
        (*others, ("another class", "K.Held(5)")),
        tuple(inplace),
    )


_LIST = partial(_sequence, kind="list", shape="[*]", changeable=True)
_DICT = partial(_mapping, kind="dict", shape="*")
_CONTAINERS: tuple[Callable[[Random, int], Value], ...] = (
    partial(_sequence, kind="tuple", shape="(*)", changeable=False), _LIST,
    partial(_sequence, kind="collections.deque", shape="collections.deque([*])", changeable=True),
    partial(_sequence, kind="K.List", shape="K.List([*])", changeable=True),
    partial(_sequence, kind="collections.UserList", shape="collections.UserList([*])", changeable=True),
    _DICT, _DICT, _LIST, partial(_mapping, kind="OrderedDict", shape="collections.OrderedDict(*)"),
    partial(_mapping, kind="defaultdict", shape="collections.defaultdict(int, *)"),
    partial(_mapping, kind="dict subclass", shape="K.Dict(*)"), _mapping_proxy,
    partial(_set, kind="set", shape="*", changeable=True),
    partial(_set, kind="frozenset", shape="frozenset(*)", changeable=False), record, record, thing, thing,
)  # fmt: skip


def value(rng: Random, depth: int = 0) -> Value:
    """Any value; containers hold values down to a depth."""
    if depth < 2 and rng.random() < 0.5:
        return rng.choice(_CONTAINERS)(rng, depth)
    return rng.choice(SCALARS)(rng, depth)


def plain(rng: Random) -> Value:
    """A number, a text, a flag, None or a member of an enum."""
    return rng.choice(PLAIN)(rng, 0)
