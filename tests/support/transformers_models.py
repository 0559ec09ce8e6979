"""Models of the transformers package, tiny and with random weights, as a user would serve them."""

from __future__ import annotations

import os

# The package is asked for code only; no test may look for weights or configurations anywhere.
os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

from warmrank.inference import cache_compile

VOCABULARY = 64
HEADS, KEY_HEADS, HEAD_SIZE = 4, 2, 8
CACHE_LENGTH = 24
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HEADS * HEAD_SIZE,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 64,
}
DECODER: dict[str, Any] = {**SIZES, "num_key_value_heads": KEY_HEADS, "head_dim": HEAD_SIZE}
EXPERTS: dict[str, Any] = {**DECODER, "num_experts_per_tok": 2}
GPT2: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "n_embd": HEADS * HEAD_SIZE,
    "n_layer": 2,
    "n_head": HEADS,
    "n_positions": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


class Served(nn.Module):
    """A causal model with one cached function for the prompt and one for each token after it."""

    def __init__(self, model: Any, cache: str, **options: Any) -> None:
        super().__init__()
        self.model = model
        self.cached_prefill = cache_compile(self.prefill, cache_dir=cache, **options)
        self.cached_decode = cache_compile(self.decode, cache_dir=cache, **options)

    def prefill(self, ids: torch.Tensor, kv: Any) -> Any:
        return self.model(input_ids=ids, past_key_values=kv, use_cache=True).logits

    def decode(self, ids: torch.Tensor, kv: Any) -> Any:
        return self.model(input_ids=ids, past_key_values=kv, use_cache=True).logits


class Encoder(nn.Module):
    """An encoder with one cached function."""

    def __init__(self, model: Any, cache: str) -> None:
        super().__init__()
        self.model = model
        self.cached_encode = cache_compile(self.encode, cache_dir=cache)

    def encode(self, ids: torch.Tensor, mask: torch.Tensor) -> Any:
        output = self.model(input_ids=ids, attention_mask=mask)
        return output.last_hidden_state, output.pooler_output


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Configuration class and model class of a kind of model, and the options of the first."""

    config: Any
    model: Any
    options: dict[str, Any]

    def build(self) -> Any:
        torch.manual_seed(0)
        return self.model(self.config(**self.options)).eval()


def _family(config: str, model: str, options: dict[str, Any], attention: str, **more: Any) -> Family:
    return Family(
        config=getattr(transformers, config),
        model=getattr(transformers, model),
        options={**options, "attn_implementation": attention, **more},
    )


def mixtral(attention: str, experts: str) -> Family:
    return _family(
        "MixtralConfig",
        "MixtralForCausalLM",
        EXPERTS,
        attention,
        num_local_experts=4,
        experts_implementation=experts,
    )


DECODERS: dict[str, Family] = {
    "llama-eager": _family("LlamaConfig", "LlamaForCausalLM", DECODER, "eager"),
    "llama-sdpa": _family("LlamaConfig", "LlamaForCausalLM", DECODER, "sdpa"),
    "qwen3-sdpa": _family("Qwen3Config", "Qwen3ForCausalLM", DECODER, "sdpa"),
    "gpt2-eager": _family("GPT2Config", "GPT2LMHeadModel", GPT2, "eager"),
    "gpt2-sdpa": _family("GPT2Config", "GPT2LMHeadModel", GPT2, "sdpa"),
    "mixtral-eager": mixtral("eager", "grouped_mm"),
    "qwen3_moe-sdpa": _family(
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        EXPERTS,
        "sdpa",
        num_experts=4,
        moe_intermediate_size=16,
        experts_implementation="batched_mm",
    ),
}
ENCODERS: dict[str, Family] = {
    "bert-eager": _family("BertConfig", "BertModel", SIZES, "eager"),
    "bert-sdpa": _family("BertConfig", "BertModel", SIZES, "sdpa"),
}


def static_cache(model: Any, batch: int) -> Any:
    """A key-value cache of fixed length."""
    kv = transformers.StaticCache(config=model.config, max_cache_len=CACHE_LENGTH)
    heads = getattr(model.config, "num_key_value_heads", HEADS)
    kv.early_initialization(batch, heads, HEAD_SIZE, torch.float32, torch.device("cpu"))
    return kv


def token_ids(batch: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(0, VOCABULARY, (batch, length), generator=generator)


def generated(
    model: Any, prefill: Callable[..., Any], decode: Callable[..., Any], *, batch: int, length: int
) -> list[torch.Tensor]:
    """Logits of a prompt and of three tokens after it, then the key-value cache."""
    kv = static_cache(model, batch)
    logits = [prefill(token_ids(batch, length), kv).clone()]
    for _ in range(3):
        logits.append(decode(logits[-1][:, -1].argmax(-1, keepdim=True), kv).clone())
    for layer in kv.layers:
        logits += [layer.keys.clone(), layer.values.clone(), layer.cumulative_length.clone()]
    return logits


def encoded(encode: Callable[..., Any], *, batch: int, length: int) -> list[torch.Tensor]:
    """Both outputs of an encoder, for a batch whose first member is padded."""
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, -2:] = 0
    return [item.clone() for item in encode(token_ids(batch, length), mask)]
