"""Parameters, buffers, layers, first arguments and operators, and what may be done to them."""

# ruff: noqa: E501 - a program's text in one line per part reads as a table

from __future__ import annotations

from tests.fuzz.program import Part, part

_W = "nn.Parameter(torch.arange(12, dtype=torch.float64).reshape(3, 4) / 8, requires_grad=False)"

TENSORS = (
    part(
        "parameter / read",
        {"init": f"self.w# = {_W}", "body": "y = y + self.w#.sum() * 3 + self.w#.shape[0] + (5 if self.w#.is_contiguous() else 7)"},
        sources={
            "value": {"init": f"self.w# = {_W}\nself.w#.data.mul_(2)"},
            "type": {"init": f"self.w# = {_W}.float()\nself.w# = nn.Parameter(self.w#, requires_grad=False)".replace("self.w# = nn", "w = self.w#\ndel self.w#\nself.w# = nn").replace("(self.w#,", "(w,")},
            "shape": {"init": "self.w# = nn.Parameter(torch.ones(4, 4, dtype=torch.float64), requires_grad=False)"},
            "buffer": {"init": "self.register_buffer('w#', torch.ones(3, 4, dtype=torch.float64))"},
            "plain tensor": {"init": "self.w# = torch.ones(3, 4, dtype=torch.float64)"},
            "number": {"init": "self.w# = np.ones((3, 4))"},
        },
        mutations={
            "data of another type": "m.w#.data = m.w#.data.float()",
            "data of another shape": "m.w#.data = m.w#.data[:2].clone()",
            "smaller data": "m.w#.data = m.w#.data[:1, :2]",
            "data transposed in memory": "m.w#.data = m.w#.data.t().contiguous().t()",
            "transposed": "m.w#.data = m.w#.data.t()",
            "transposed in place": "m.w#.t_()",
            "replaced": "m.w# = nn.Parameter(torch.ones(3, 4, dtype=torch.float64), requires_grad=False)",
            "filled": "m.w#.data.fill_(2)",
            "grad asked for": "m.w#.requires_grad_()",
            "expanded": "m.w#.data = m.w#.data[:1].expand(3, 4)",
            "resized": "m.w#.data = torch.zeros(0, dtype=torch.float64)",
            "module to float": "m.float()",
            "set_": "m.w#.data.set_(torch.ones(2, 4, dtype=torch.float64))",
        },
    ),
    part(
        "parameter / layout in control flow",
        {"init": f"self.w# = {_W}", "body": "y = y * 2 + (3 if self.w#.stride(0) > self.w#.stride(1) else 11) + self.w#.storage_offset() + self.w#.t().reshape(-1)[1]"},
        mutations={
            "data transposed in memory": "m.w#.data = m.w#.data.t().contiguous().t()",
            "offset": "m.w#.data = torch.arange(24, dtype=torch.float64).reshape(6, 4)[2:5]",
            "transposed in place": "m.w#.data.t_()",
        },
    ),
    part(
        "parameter / flags in control flow",
        {"init": f"self.w# = {_W}\nself.v# = {_W}", "body": "y = y + (3 if self.w#.requires_grad else 5) + (7 if isinstance(self.w#, nn.Parameter) else 13) + (2 if self.w#.dtype == torch.float64 else 11) + (17 if self.w# is self.v# else 23)"},
        sources={"type": {"init": f"self.w# = {_W}\nself.v# = nn.Parameter(self.w#.data.float(), requires_grad=False)"}},
        mutations={
            "requires_grad": "m.w#.requires_grad_()",
            "tied": "m.v# = m.w#",
            "tied data": "m.v#.data = m.w#.data",
            "buffer for it": "w = m.w#.data; del m.w#; m.register_buffer('w#', w)",
            "double to half": "m.half()",
        },
    ),
    part(
        "buffer / written",
        {"init": "self.register_buffer('b#', torch.zeros(4, dtype=torch.float64))", "body": "self.b#.add_(1)\ny = y + self.b#.sum()"},
        mutations={
            "another": "m.b# = torch.ones(4, dtype=torch.float64)",
            "smaller": "m.b# = torch.ones(2, dtype=torch.float64)",
            "smaller data": "m.b#.data = torch.ones(1, dtype=torch.float64)",
            "another type": "m.b# = torch.ones(4)",
            "filled": "m.b#.fill_(7)",
            "expanded": "m.b# = torch.ones(2, 4, dtype=torch.float64)[:, 0]",
        },
    ),
    part(
        "linear / layer",
        {"init": "self.s# = nn.Linear(4, 4, dtype=torch.float64)", "body": "y = self.s#(y) * 3"},
        sources={
            "without bias": {"init": "self.s# = nn.Linear(4, 4, bias=False, dtype=torch.float64)"},
            "in a sequence": {"init": "self.s# = nn.Sequential(nn.Linear(4, 4, dtype=torch.float64), nn.ReLU())"},
            "initialised otherwise": {"init": "self.s# = nn.Linear(4, 4, dtype=torch.float64)\nnn.init.ones_(self.s#.weight)"},
            "wider inside": {"init": "self.s# = nn.Sequential(nn.Linear(4, 8, dtype=torch.float64), nn.Linear(8, 4, dtype=torch.float64))"},
            "tied with another": {"init": "self.s# = nn.Linear(4, 4, dtype=torch.float64)\nself.s#.weight = self.first.weight"},
        },
        mutations={
            "weight transposed in memory": "m.s#.weight.data = m.s#.weight.data.t().contiguous().t()",
            "weight transposed": "m.s#.weight.data = m.s#.weight.data.t()",
            "weight transposed in place": "m.s#.weight.t_() if not m.s#.weight.requires_grad else m.s#.weight.data.t_()",
            "bias removed": "m.s#.bias = None",
            "weights swapped": "m.s#.weight, m.s#.bias = nn.Parameter(m.s#.weight.data * 2), nn.Parameter(m.s#.bias.data + 1)",
            "layer replaced": "m.s# = nn.Linear(4, 4, dtype=torch.float64)",
            "layer replaced by another type": "m.s# = nn.ReLU()",
            "layer wrapped": "m.s# = nn.Sequential(m.s#, nn.ReLU())", "layer shared": "m.s# = m.first",
            "hook": "m.s#.register_forward_hook(lambda mod, a, o: o * 2)",
            "pre-hook": "m.s#.register_forward_pre_hook(lambda mod, a: (a[0] + 1,))",
            "hook with keywords": "m.s#.register_forward_hook(lambda mod, a, k, o: o * 2, with_kwargs=True)",
            "forward replaced": "m.s#.forward = lambda y: y * 2",
            "method of the class replaced": "nn.Linear.forward = lambda self, y: y * 2",
            "parametrized": "torch.nn.utils.parametrize.register_parametrization(m.s#, 'weight', nn.Tanh())",
            "weight norm": "torch.nn.utils.parametrizations.weight_norm(m.s#)",
            "global hook": "torch.nn.modules.module.register_module_forward_hook(lambda mod, a, o: o * 2)",
            "to float": "m.s#.float()",
            "state loaded": "m.s#.load_state_dict({'weight': torch.ones(4, 4), 'bias': torch.ones(4)})",
            "state assigned": "m.s#.load_state_dict({'weight': torch.ones(4, 4, dtype=torch.float64).t(), 'bias': torch.ones(4, dtype=torch.float64)}, assign=True)",
            "data smaller": "m.s#.weight.data = m.s#.weight.data[:1]",
            "class changed": "m.s#.__class__ = type('L', (nn.Linear,), {'forward': lambda self, y: y * 5})",
        },
    ),
    part(
        "layers / list",
        {"init": "self.s# = nn.ModuleList([nn.Linear(4, 4, dtype=torch.float64), nn.Linear(4, 4, dtype=torch.float64)])", "body": "for s# in self.s#:\n    y = s#(y) + 1"},
        mutations={
            "swapped": "m.s#[0], m.s#[1] = m.s#[1], m.s#[0]",
            "appended": "m.s#.append(nn.ReLU())",
            "removed": "del m.s#[0]",
            "inserted": "m.s#.insert(0, nn.Tanh())",
            "shared": "m.s#[1] = m.s#[0]",
            "one tied": "m.s#[1].weight = m.s#[0].weight",
            "both tied to the first": "m.s#[1].weight = m.first.weight",
            "replaced": "m.s# = nn.ModuleList([nn.Linear(4, 4, dtype=torch.float64)])",
        },
    ),
    part(
        "layers / dict",
        {"init": "self.s# = nn.ModuleDict({'a': nn.Linear(4, 4, dtype=torch.float64), 'b': nn.Tanh()})", "body": "for n#, s# in self.s#.items():\n    y = s#(y) + len(n#)"},
        mutations={
            "order": "m.s#['a'] = m.s#.pop('a')",
            "more": "m.s#['cc'] = nn.ReLU()",
            "fewer": "del m.s#['b']",
            "another": "m.s#['b'] = nn.ReLU()",
        },
    ),
    part(
        "layers / walked",
        {"init": "self.s# = nn.Sequential(nn.Linear(4, 4, dtype=torch.float64), nn.Tanh())", "body": "y = y + len(list(self.s#.modules())) * 3 + sum(p.sum() for p in self.s#.parameters()) + sum(len(n) for n, _ in self.s#.named_buffers())"},
        mutations={
            "more": "m.s#.append(nn.ReLU())",
            "buffer": "m.s#.register_buffer('extra', torch.ones(2))",
            "parameter": "m.s#.register_parameter('p', nn.Parameter(torch.ones(2, dtype=torch.float64)))",
            "frozen": "m.s#.requires_grad_(False)",
        },
    ),
    part(
        "state dict / walked",
        {"init": "self.s# = nn.Linear(4, 4, dtype=torch.float64)", "body": "y = y + sum((i + 1) * v.sum() for i, (k, v) in enumerate(self.s#.state_dict().items()))"},
        mutations={"buffer": "m.s#.register_buffer('extra', torch.ones(2, dtype=torch.float64))"},
    ),
    part(
        "training / own", {"body": "y = y * (3 if self.training else 5)", "after": "m.eval()"},
        sources={"train": {"after": "m.train()"}},
        mutations={"train": "m.train()", "flag": "m.training = True"},
    ),
    part(
        "training / layer",
        {"init": "self.s# = nn.Dropout(0.5); self.t# = nn.BatchNorm1d(4, dtype=torch.float64)", "body": "y = self.t#(self.s#(y)) * 2", "after": "m.eval()"},
        mutations={"train of one": "m.t#.train()", "rate": "m.s#.p = 0.25", "momentum": "m.t#.momentum = 0.5", "eps": "m.t#.eps = 0.5", "no statistics": "m.t#.track_running_stats = False; m.t#.running_mean = None; m.t#.running_var = None"},
    ),
    part(
        "normalisation / settings",
        {"init": "self.s# = nn.LayerNorm(4, dtype=torch.float64)", "body": "y = self.s#(y) * 7"},
        sources={"eps": {"init": "self.s# = nn.LayerNorm(4, eps=0.5, dtype=torch.float64)"}, "no affine": {"init": "self.s# = nn.LayerNorm(4, elementwise_affine=False)"}},
        mutations={"eps": "m.s#.eps = 0.5", "shape": "m.s#.normalized_shape = (3, 4) if False else (4,)"},
    ),
    part(
        "convolution / settings",
        {"init": "self.s# = nn.Conv1d(1, 1, 3, padding=1, dtype=torch.float64)", "body": "y = self.s#(y.unsqueeze(1)).sum(1)[:, :4] * 2"},
        mutations={"padding mode": "m.s#.padding_mode = 'circular'; m.s#._reversed_padding_repeated_twice = [1, 1]", "dilation": "m.s#.padding = (2,); m.s#.dilation = (2,)", "weight": "m.s#.weight.data = m.s#.weight.data * 2"},
    ),
    part(
        "embedding / settings",
        {"init": "self.s# = nn.Embedding(5, 4, dtype=torch.float64)", "body": "y = y + self.s#(torch.arange(y.shape[0]) % 5) * 2"},
        mutations={"max_norm": "m.s#.max_norm = 0.1", "weight": "m.s#.weight = nn.Parameter(torch.ones(5, 4, dtype=torch.float64))", "fewer rows": "m.s#.weight = nn.Parameter(torch.ones(3, 4, dtype=torch.float64))"},
    ),
    part(
        "recurrent / LSTM",
        {"init": "self.s# = nn.LSTM(4, 4, dtype=torch.float64)", "body": "y = self.s#(y)[0] + 1"},
        mutations={"weight": "m.s#.weight_ih_l0.data.mul_(2)", "replaced": "m.s# = nn.LSTM(4, 4, bias=False, dtype=torch.float64)"},
    ),
    part(
        "attention / scaled dot product",
        {"body": "y = F.scaled_dot_product_attention(y[None, None], y[None, None], y[None, None], scale=self.q#)[0, 0] + y", "init": "self.q# = 0.5"},
        sources={"scale": {"init": "self.q# = None"}},
        mutations={"scale": "m.q# = 2.0"},
    ),
    part(
        "parameter / through a closure",
        {"top": "def make#(w):\n    def inner(y):\n        return y + w.sum() * 3\n    return inner", "init": f"self.w# = {_W}\nself.f# = make#(self.w#)", "body": "y = self.f#(y)"},
        mutations={"filled": "m.w#.data.fill_(2)", "replaced on the module only": "m.w# = nn.Parameter(torch.ones(3, 4, dtype=torch.float64), requires_grad=False)", "shape": "m.w#.data = m.w#.data[:1]"},
    ),
    part(
        "parameter / in a list", {"init": f"self.w# = [{_W}, {_W}]", "body": "y = y + self.w#[1].sum() * 3 + (2 if self.w#[0] is self.w#[1] else 5)"},
        mutations={"shared": "m.w#[1] = m.w#[0]", "another": "m.w#[1] = torch.ones(3, dtype=torch.float64)", "swap": "m.w#.reverse()", "more": f"m.w#.insert(0, {_W})"},
    ),
    part(
        "tensor / global", {"helper": "T# = torch.arange(4, dtype=torch.float64)", "body": "y = y + helper.T# * 3 + helper.T#.shape[0]"},
        sources={"value": {"helper": "T# = torch.arange(4, dtype=torch.float64) + 1"}, "type": {"helper": "T# = torch.arange(4)"}},
        mutations={"set": "helper.T# = torch.ones(1, dtype=torch.float64)", "filled": "helper.T#.fill_(5)", "parameter": "helper.T# = nn.Parameter(helper.T#)"},
    ),
    part(
        "parameter subclass / vLLM-like",
        {"top": "class P#(nn.Parameter):\n    def __new__(cls, data, dim=0):\n        return super().__new__(cls, data, requires_grad=False)\n    def __init__(self, data, dim=0):\n        self.dim_ = dim", "init": "self.w# = P#(torch.ones(3, 4, dtype=torch.float64), dim=1)", "body": "y = y + self.w#.sum() * 3 + self.w#.dim_"},
        sources={"attribute": {"init": "self.w# = P#(torch.ones(3, 4, dtype=torch.float64), dim=2)"}},
        mutations={"attribute": "m.w#.dim_ = 5", "value": "m.w#.data.fill_(2)"},
    ),
)  # fmt: skip


SIZES = (
    part("sizes / square root", {"body": "y = y / math.sqrt(y.shape[-1]) + math.sqrt(y.shape[0])"}),
    part("sizes / rounding", {"body": "y = y + round(y.shape[0] / 2) + round(y.shape[0] * 1.5)"}),
    part("sizes / division", {"body": "y = y + y.shape[0] // 2 + y.shape[0] % 3 + y.shape[0] / 4"}),
    part("sizes / extrema", {"body": "y = y + max(y.shape[0], 4) + min(y.shape[0], y.shape[1])"}),
    part("sizes / branch", {"body": "if y.shape[0] > 4:\n    y = y * 3\nelse:\n    y = y * 5"}),
    part("sizes / equality", {"body": "y = y * (3 if y.shape[0] == y.shape[1] else 5)"}),
    part("sizes / loop", {"body": "for i# in range(y.shape[0]):\n    y = y + i#"}),
    part("sizes / floor and log", {"body": "y = y + math.floor(y.shape[0] / 2) + math.ceil(y.shape[0] / 2) + math.log2(y.shape[0] + 1)"}),
    part("sizes / power", {"body": "y = y + y.shape[0] ** 2 + 2 ** y.shape[0] + float(y.shape[0]) ** 0.5"}),
    part("sizes / int and bool", {"body": "y = y + int(y.shape[0] * 0.7) + (3 if y.shape[0] else 5) + bool(y.numel())"}),
    part("sizes / text", {"body": "y = y + len(str(y.shape[0])) + len(f'{y.shape}')"}),
    part("sizes / numel and strides", {"body": "y = y + y.numel() + y.stride(0) + y.storage_offset()"}),
    part("sizes / list index", {"init": "self.l# = [3, 5, 7, 11, 13, 17, 19, 23, 29]", "body": "y = y + self.l#[y.shape[0]]"}),
    part("sizes / slices", {"body": "y = y + y[: y.shape[0] // 2 + 1].sum() + y[-1:].sum()"}),
    part("sizes / arange and tensors", {"body": "y = y + torch.arange(y.shape[0]).sum() + torch.tensor(y.shape[0]) + torch.tensor(list(y.shape)).sum()"}),
    part("sizes / view", {"body": "y = y + y.reshape(-1).view(y.shape[1], y.shape[0]).sum(0).sum()"}),
    part("layout / branch", {"body": "y = y + (3 if x.is_contiguous() else 5) + x.stride(0) * 2 + (7 if x.t().is_contiguous() else 11)"}),
    part("layout / flags", {"body": "y = y + (3 if x.requires_grad else 5) + (7 if x.dtype == torch.float64 else 11) + (13 if isinstance(x, nn.Parameter) else 17) + (2 if x.is_inference() else 19)"}),
    part("layout / rank", {"body": "y = y * (x.dim() + 1) + x.element_size()"}),
    part("layout / written", {"body": "x.add_(1)\ny = y + x.sum()"}),
    part("layout / as_strided", {"body": "y = y + x.as_strided((2,), (1,)).sum() + x.storage_offset()"}),
    part("layout / version", {"body": "y = y + x._version"}),
    part("layout / pinned and kept", {"body": "y = y + (3 if x.is_conj() else 5) + (7 if x.is_neg() else 9) + (3 if x.is_leaf else 4) + (2 if x.grad is None else 3)"}),
)  # fmt: skip

_X = "torch.arange({n}, dtype=torch.{dtype}).reshape({shape}).clone() / 8 + call"
INPUTS = {
    "more rows": _X.format(n=20, dtype="float64", shape="5, 4"),
    "one row": _X.format(n=4, dtype="float64", shape="1, 4"),
    "as many rows as columns": _X.format(n=16, dtype="float64", shape="4, 4"),
    "many rows": _X.format(n=400, dtype="float64", shape="100, 4"),
    "no rows": _X.format(n=0, dtype="float64", shape="0, 4"),
    "float32": _X.format(n=12, dtype="float32", shape="3, 4"),
    "float16": "(" + _X.format(n=12, dtype="float32", shape="3, 4") + ").half()",
    "complex": "(" + _X.format(n=12, dtype="float64", shape="3, 4") + ").to(torch.complex128)",
    "conjugated": "(" + _X.format(n=12, dtype="float64", shape="3, 4") + ").to(torch.complex128).conj()",
    "transposed": "(torch.arange(12, dtype=torch.float64).reshape(4, 3) / 8 + call).t()",
    "expanded": "(torch.arange(4, dtype=torch.float64) / 8 + call).expand(3, 4)",
    "every other row": "(torch.arange(24, dtype=torch.float64).reshape(6, 4) / 8 + call)[::2]",
    "with an offset": "(torch.arange(24, dtype=torch.float64).reshape(6, 4) / 8 + call)[2:5]",
    "overlapping rows": "(torch.arange(12, dtype=torch.float64) / 8 + call).as_strided((3, 4), (2, 1))",
    "parameter": "nn.Parameter(" + _X.format(n=12, dtype="float64", shape="3, 4") + ", requires_grad=False)",
    "wants gradients": "(" + _X.format(n=12, dtype="float64", shape="3, 4") + ").requires_grad_()",
    "another rank": _X.format(n=24, dtype="float64", shape="2, 3, 4"),
    "other values": _X.format(n=12, dtype="float64", shape="3, 4") + " + 1.5",
    "inference tensor": "torch.inference_mode()(lambda: "
    + _X.format(n=12, dtype="float64", shape="3, 4")
    + ")()",
    "NumPy memory": "torch.from_numpy(np.arange(12, dtype=np.float64).reshape(3, 4) / 8 + call)",
}
"""Other first arguments."""


_OPERATOR = """
SHAPE# = 2
@torch.library.custom_op("fuzz::op#", mutates_args=())
def op#(y: torch.Tensor) -> torch.Tensor:
    return y.new_ones(y.shape[0] + EXTRA#) * FACTOR# + y.sum()
@op#.register_fake
def _(y):
    return y.new_empty(y.shape[0] + EXTRA#)
"""

_LIBRARY = (
    "library# = torch.library.Library('fuzzed#', 'FRAGMENT')\nlibrary#.define('op(Tensor x) -> Tensor')\n"
)
_CUSTOM = "@torch.library.custom_op('fuzzed#::op', mutates_args=())\ndef op#(x: torch.Tensor) -> torch.Tensor: return x * 2\n@op#.register_fake\ndef _(x): return torch.empty_like(x)\n"
_IN_A_FILE = {
    "CompositeImplicitAutograd": "library#.impl('op', lambda x: x * 2.0 + NUM#, 'CompositeImplicitAutograd')\n",
    "overload": "library# = torch.library.Library('fuzzed#', 'FRAGMENT')\nlibrary#.define('op.out_of_two(Tensor x) -> Tensor')\nlibrary#.define('op.other(Tensor x, int y) -> Tensor')\nlibrary#.impl('op.out_of_two', lambda x: x * 2.0 + NUM#, 'CompositeImplicitAutograd')\n",
    "Meta": "def op#(x): return x[:, :NUM#].contiguous()\nlibrary#.impl('op', op#, 'CPU')\nlibrary#.impl('op', op#, 'Meta')\n",
    "custom_op": "@torch.library.custom_op('fuzzed#::op', mutates_args=())\ndef op#(x: torch.Tensor) -> torch.Tensor: return x[:, :NUM#].contiguous()\n@op#.register_fake\ndef _(x): return torch.empty(x.shape[0], NUM#, dtype=x.dtype)\n",
    "vmap": f"{_CUSTOM}@op#.register_vmap\ndef _(info, dims, x): return x * NUM#, dims[0]\n",
    "vmap of a library": "library#.impl('op', lambda x: x * 2, 'CPU')\nlibrary#.impl('op', torch.empty_like, 'Meta')\ntorch.library.register_vmap('fuzzed#::op', lambda info, dims, x: (x * NUM#, dims[0]), lib=library#)\n",
}


def _in_a_file(name: str, text: str) -> Part:
    """An operator whose file has a number that changes."""
    begun = "" if "custom_op(" in text or "Library(" in text else _LIBRARY
    op = "torch.ops.fuzzed#.op"
    body = f"y = torch.vmap({op})(y)" if "vmap" in name else f"z# = {op}(y)\ny = y + z#.sum() + z#.shape[-1]"
    files = [{"ops": f"{begun}{text}NUM# = {number}"} for number in (1, 2)]
    said = "operator fuzzed0::op"
    return part(f"operator / {name}", {"body": body, **files[0]}, sources={"number": files[1]}, said=said)


OPERATORS = (
    *(_in_a_file(name, text) for name, text in _IN_A_FILE.items()),
    part(
        "operator / constants beside it",
        {"helper": "EXTRA# = 1\nFACTOR# = 3" + _OPERATOR, "body": "z# = helper.op#(y)\ny = y + z#.sum() + z#.shape[0]"},
        sources={"factor": {"helper": "EXTRA# = 1\nFACTOR# = 7" + _OPERATOR}, "shape": {"helper": "EXTRA# = 2\nFACTOR# = 3" + _OPERATOR}, "body": {"helper": "EXTRA# = 1\nFACTOR# = 3" + _OPERATOR.replace("+ y.sum()", "- y.sum()")}},
        mutations={"factor": "helper.FACTOR# = 7", "shape": "helper.EXTRA# = 2"},
    ),
    part(
        "operator / constants elsewhere",
        {"conf": "EXTRA# = 1\nFACTOR# = 3", "helper": _OPERATOR.replace("EXTRA#", "conf.EXTRA#").replace("FACTOR#", "conf.FACTOR#"), "body": "z# = helper.op#(y)\ny = y + z#.sum() + z#.shape[0]"},
        sources={"factor": {"conf": "EXTRA# = 1\nFACTOR# = 7"}, "shape": {"conf": "EXTRA# = 2\nFACTOR# = 3"}},
        mutations={"factor": "conf.FACTOR# = 7", "shape": "conf.EXTRA# = 2"},
    ),
    part(
        "operator / code elsewhere",
        {"conf": "def extra#():\n    return 1\ndef factor#(y):\n    return y * 3", "helper": _OPERATOR.replace("EXTRA#", "conf.extra#()").replace("* FACTOR#", "* conf.factor#(2)"), "body": "z# = helper.op#(y)\ny = y + z#.sum() + z#.shape[0]"},
        sources={"factor": {"conf": "def extra#():\n    return 1\ndef factor#(y):\n    return y * 7"}, "shape": {"conf": "def extra#():\n    return 2\ndef factor#(y):\n    return y * 3"}},
        mutations={"factor": "conf.factor# = lambda y: y * 7", "shape": "conf.extra# = lambda: 2"},
    ),
    part(
        "operator / decomposed to others",
        {"conf": "N# = 3", "helper": "lib# = torch.library.Library('fuzzlib#', 'DEF')\nlib#.define('f(Tensor y) -> Tensor')\n@torch.library.impl(lib#, 'f', 'CompositeImplicitAutograd')\ndef f#(y):\n    return y * conf.N#", "body": "y = torch.ops.fuzzlib#.f(y) + 1"},
        sources={"constant": {"conf": "N# = 7"}},
        mutations={"constant": "conf.N# = 7"},
    ),
    part(
        "operator / own decomposition",
        {
            "conf": "N# = 3",
            "helper": "lib# = torch.library.Library('fuzzlib#', 'DEF')\nlib#.define('g(Tensor y) -> Tensor')\n@torch.library.impl(lib#, 'g', 'CompositeExplicitAutograd')\ndef g#(y):\n    return y * conf.N#\n@torch.library.register_fake('fuzzlib#::g')\ndef _(y):\n    return torch.empty_like(y)\ndef d#(y):\n    return conf.N# * y",
            "body": "y = torch.ops.fuzzlib#.g(y) + 1",
            "options": "custom_decompositions={torch.ops.fuzzlib#.g.default: helper.d#}",
        },
        sources={"constant": {"conf": "N# = 7"}}, mutations={"constant": "conf.N# = 7"},
    ),
)  # fmt: skip
