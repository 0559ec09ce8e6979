"""Sizes and layout of the first argument, and other first arguments."""

# ruff: noqa: E501 - a program's text in one line per part reads as a table

from __future__ import annotations

from tests.fuzz.program import part

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
