"""The decoder of the `mark_static` sketch, filled in: through ``torch.compile`` and `cache_compile`."""

import logging
from typing import Optional

import torch
import torch_npu
import torchair
from torch import Tensor, nn

torchair.logger.setLevel(logging.INFO)
n_layer, width, length = 2, 4, 6


def kv_of(rows: int) -> dict[str, Tensor]:
    return {"key": torch.rand(1, rows, width).npu(), "value": torch.rand(1, rows, width).npu()}


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(width, 2 * width)
        self.kv_cache = {i: {"attn": kv_of(length), "cross_attn": kv_of(3)} for i in range(n_layer)}

    def decode(
        self,
        x: Tensor,
        xa: Tensor,
        positional_embedding: Tensor,
        kv_cache: Optional[dict] = None,  # type: ignore[type-arg]
        updated_kv_positions: Optional[torch.LongTensor] = None,
        actual_seq_len: Optional[list] = None,  # type: ignore[type-arg]
        kv_padding_size: Optional[torch.LongTensor] = None,
    ):
        if kv_cache is None:
            return x + xa + positional_embedding
        assert actual_seq_len is not None
        x = x + positional_embedding
        used = torch.arange(length, device=x.device) < actual_seq_len[0]
        if kv_padding_size is not None:
            used = used & (torch.arange(length, device=x.device) >= kv_padding_size)
        for i in range(n_layer):
            attn, cross_attn = kv_cache[i]["attn"], kv_cache[i]["cross_attn"]
            key, value = self.project(x).chunk(2, -1)
            attn["key"].index_copy_(1, updated_kv_positions, key)
            attn["value"].index_copy_(1, updated_kv_positions, value)
            weights = (x @ attn["key"].mT).masked_fill(~used, -1e9).softmax(-1)
            x = x + weights @ attn["value"]
            x = x + ((x + xa) @ cross_attn["key"].mT).softmax(-1) @ cross_attn["value"]
        return x

    def compute_logits(
        self, x, xa, positional_embedding, updated_kv_positions, actual_seq_len, kv_padding_size
    ):
        torch._dynamo.mark_static(x)
        torch._dynamo.mark_static(xa)
        torch._dynamo.mark_static(positional_embedding)
        for i in range(n_layer):
            torch._dynamo.mark_static(self.kv_cache[i]["attn"]["key"])
            torch._dynamo.mark_static(self.kv_cache[i]["attn"]["value"])
            torch._dynamo.mark_static(self.kv_cache[i]["cross_attn"]["key"])
            torch._dynamo.mark_static(self.kv_cache[i]["cross_attn"]["value"])
        torch._dynamo.mark_static(kv_padding_size)
        return self.decode(
            x,
            xa,
            positional_embedding,
            self.kv_cache,
            actual_seq_len=[actual_seq_len],
            kv_padding_size=kv_padding_size,
            updated_kv_positions=updated_kv_positions,
        )


config = torchair.CompilerConfig()
npu_backend = torchair.get_npu_backend(compiler_config=config)
eager, decoder, cached = Decoder().npu(), Decoder().npu(), Decoder().npu()
decoder.decode = torch.compile(decoder.decode, dynamic=True, fullgraph=True, backend=npu_backend)  # type: ignore[method-assign]
cached.decode = torchair.inference.cache_compile(  # type: ignore[method-assign]
    cached.decode, dynamic=True, config=config
)
with torch.no_grad():
    for position in range(1, 5):
        inputs = [torch.rand(1, 1, width).npu() for _ in range(3)]
        inputs.append(torch.tensor([position]).npu())
        lengths = {"actual_seq_len": position + 1, "kv_padding_size": torch.tensor([1]).npu()}
        wanted = eager.compute_logits(*inputs, **lengths)
        for compiled in (decoder, cached):
            found = compiled.compute_logits(*inputs, **lengths)
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)
            torch.testing.assert_close(compiled.kv_cache, eager.kv_cache, rtol=0, atol=0)
    x, xa, positional_embedding = (torch.rand(1, 1, width).npu() for _ in range(3))
    wanted = eager.decode(x, xa, positional_embedding)
    torch.testing.assert_close(decoder.decode(x, xa, positional_embedding), wanted, rtol=0, atol=0)
    torch.testing.assert_close(cached.decode(x, xa, positional_embedding), wanted, rtol=0, atol=0)
