"""Operators that generated source calls through torch's own Python binding instead of ``torch.ops``.

``torch.ops`` boxes every argument, which costs about a microsecond a call; the bindings below reach the same
overload unboxed. A row is right only if the binding takes the schema's arguments in the schema's order and
picks the same overload for them; ``tests/contract/test_bindings.py`` checks every row.
"""

from __future__ import annotations

_FUNCTIONS = (
    "add.Tensor",
    "sub.Tensor", "mul.Tensor", "div.Tensor", "neg.default", "rsqrt.default", "sqrt.default",
    "exp.default",
    "cos.default", "sin.default", "tanh.default", "sigmoid.default", "relu.default",
    "pow.Tensor_Scalar", "mean.dim", "sum.dim_IntList", "sum.default", "softmax.int", "matmul.default",
    "mm.default", "bmm.default", "addmm.default", "reshape.default", "transpose.int", "permute.default",
    "unsqueeze.default", "squeeze.dim", "select.int", "index_select.default", "gather.default", "cat.default",
    "stack.default", "chunk.default", "unbind.int", "where.self", "masked_fill.Scalar", "embedding.default",
    "layer_norm.default", "rms_norm.default", "eq.Scalar", "eq.Tensor", "ne.Scalar", "ne.Tensor", "lt.Scalar",
    "lt.Tensor", "le.Scalar", "le.Tensor", "gt.Scalar", "gt.Tensor", "ge.Scalar", "ge.Tensor",
    "detach.default",
    "logical_not.default", "bitwise_and.Tensor",
)  # fmt: skip
_METHODS = (
    "view.default", "expand.default", "contiguous.default", "copy_.default", "add_.Tensor", "sub_.Tensor",
    "mul_.Tensor", "div_.Tensor", "index_copy_.default", "to.dtype",
)  # fmt: skip
_NN = ("linear.default", "gelu.default", "silu.default", "scaled_dot_product_attention.default")

BINDINGS: dict[str, str] = {
    **{f"torch.ops.aten.{name}": f"torch.{name.partition('.')[0]}" for name in _FUNCTIONS},
    **{f"torch.ops.aten.{name}": f"torch.Tensor.{name.partition('.')[0]}" for name in _METHODS},
    **{f"torch.ops.aten.{name}": f"torch._C._nn.{name.partition('.')[0]}" for name in _NN},
}
