"""Families of transformers, tiny and with random weights, called as their ``generate`` or a server does."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import transformers
from torch import nn

from tests.support.families import Cached, Calls, furthest
from warmrank.worker.runtime.function import CachedFunction

SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 70, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 8}
WINDOWED = {**GROUPED, "sliding_window": 4}
EXPERTS = {**GROUPED, "num_experts_per_tok": 2, "num_experts": 4, "experts_implementation": "batched_mm"}
IMAGES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8,
}  # fmt: skip
BATCHES = ((2, 5), (3, 7), (2, 5))


def tokens(batch: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(batch * 10 + length)
    return torch.randint(3, 64, (batch, length), generator=generator)


class Holder(nn.Module):
    """A model, and the methods of its that are cached."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def prefill(self, ids: torch.Tensor, kv: Any) -> Any:
        return self.model(input_ids=ids, past_key_values=kv, use_cache=True).logits

    def decode(self, ids: torch.Tensor, kv: Any) -> Any:
        return self.model(input_ids=ids, past_key_values=kv, use_cache=True).logits

    def recur(self, ids: torch.Tensor, state: Any) -> Any:
        return self.model(input_ids=ids, cache_params=state, use_cache=True).logits

    def understand(self, ids: torch.Tensor, mask: torch.Tensor) -> Any:
        return self.model(input_ids=ids, attention_mask=mask)

    def look(self, pixels: torch.Tensor) -> Any:
        return self.model(pixel_values=pixels)

    def encode(self, ids: torch.Tensor) -> Any:
        return self.model.get_encoder()(input_ids=ids).last_hidden_state

    def write(self, ids: torch.Tensor, hidden: torch.Tensor, kv: Any) -> Any:
        return self.model(
            encoder_outputs=(hidden,), decoder_input_ids=ids, past_key_values=kv, use_cache=True
        ).logits


def following(step: Callable[[torch.Tensor], torch.Tensor], logits: torch.Tensor) -> list[torch.Tensor]:
    """Logits, and those of four tokens after them."""
    found = [logits]
    for _ in range(4):
        found.append(step(found[-1][:, -1].argmax(-1, keepdim=True)).clone())
    return found


def causal(model: Any, cached: Cached, *, whole: bool, static: bool | None = None) -> Calls:
    holder = Holder(model)
    decode = cached(holder.decode)
    prefill = cached(holder.prefill) if whole else holder.prefill

    def run(prefill: Any, decode: Any, batch: int, length: int) -> Any:
        kv: Any
        if static or (static is None and not whole):
            kv = transformers.StaticCache(config=model.config, max_cache_len=24)
        else:
            kv = transformers.DynamicCache(config=model.config)
        return following(lambda ids: decode(ids, kv), prefill(tokens(batch, length), kv).clone())

    pairs = ((run(holder.prefill, holder.decode, *size), run(prefill, decode, *size)) for size in BATCHES)
    return _cached(decode, prefill), max(furthest(*pair) for pair in pairs)


def _cached(*functions: Any) -> list[CachedFunction]:
    return [function for function in functions if isinstance(function, CachedFunction)]


def compared(method: Any, cached: Cached, run: Callable[..., Any]) -> Calls:
    """``run(call, batch, length)`` with a method, and with its cached function."""
    function = cached(method)
    return [function], max(furthest(run(method, *size), run(function, *size)) for size in BATCHES)


def recurrent(model: Any, cached: Cached, *, whole: bool) -> Calls:
    def run(step: Any, batch: int, length: int) -> Any:
        first = model(input_ids=tokens(batch, length), use_cache=True)
        return following(lambda ids: step(ids, first.cache_params), first.logits)

    return compared(Holder(model).recur, cached, run)


def encoder(model: Any, cached: Cached, *, whole: bool) -> Calls:
    def run(call: Any, batch: int, length: int) -> Any:
        mask = torch.ones(batch, length, dtype=torch.long)
        mask[0, -2:] = 0
        return call(tokens(batch, length), mask)

    return compared(Holder(model).understand, cached, run)


def vision(model: Any, cached: Cached, *, whole: bool) -> Calls:
    def run(call: Any, batch: int, length: int) -> Any:
        generator = torch.Generator().manual_seed(batch * 10 + length)
        return call(torch.randn(batch, 3, 32, 32, generator=generator))

    return compared(Holder(model).look, cached, run)


def translating(model: Any, cached: Cached, *, whole: bool) -> Calls:
    holder = Holder(model)
    written = cached(holder.write)
    encoded = cached(holder.encode) if whole else holder.encode

    def run(encode: Any, write: Any, batch: int, length: int) -> Any:
        hidden = encode(tokens(batch, length)).clone()
        caches = [transformers.DynamicCache(config=model.config) for _ in range(2)]
        kv = transformers.EncoderDecoderCache(*caches)
        begun = write if whole else holder.write  # fills the cache of the encoder's keys
        first = begun(torch.ones(batch, 1, dtype=torch.long), hidden, kv).clone()
        return [hidden, *following(lambda ids: write(ids, hidden, kv), first)]

    pairs = ((run(holder.encode, holder.write, *size), run(encoded, written, *size)) for size in BATCHES)
    return _cached(written, encoded), max(furthest(*pair) for pair in pairs)


def forward(model: Any, cached: Cached, *, whole: bool) -> Calls:
    """The decorated ``forward`` itself, which copies its configuration for the caches that it makes."""

    def run(call: Any, batch: int, length: int) -> Any:
        return call(input_ids=tokens(batch, length), decoder_input_ids=tokens(batch, length - 2)).logits

    return compared(model.forward, cached, run)


def generating(model: Any, cached: Cached, *, whole: bool) -> Calls:
    """The package's own ``generate`` of a model whose decorated ``forward`` is cached."""

    def run() -> Any:
        asked = {"min_new_tokens": 6, "max_new_tokens": 6, "do_sample": False, "output_logits": True}
        made = model.generate(tokens(2, 5), **asked, return_dict_in_generate=True)
        return made.sequences, made.logits

    wanted = run()
    model.forward = function = cached(model.forward)
    return [function], furthest(wanted, run())


_OPT = {**SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32}
_BLOOM = {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4}
_MOE = {**EXPERTS, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
_DISTILBERT = {"vocab_size": 64, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4}
_MODERNBERT = {**SIZES, "cls_token_id": 1, "sep_token_id": 2}
_CONVNEXT = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "image_size": 32}
_GPT2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "eos_token_id": 2}
_STATE = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
_STATE2 = {**_STATE, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8}
_T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
_BART = {
    "vocab_size": 64, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
}  # fmt: skip

# Configuration class, model class, the options of the first, and how the model is called.
FAMILIES: dict[str, tuple[str, str, dict[str, Any], Callable[..., Calls]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", GROUPED, causal),
    "llama-generate": ("LlamaConfig", "LlamaForCausalLM", GROUPED, generating),
    "mistral": ("MistralConfig", "MistralForCausalLM", WINDOWED, causal),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", GROUPED, causal),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", WINDOWED, partial(causal, static=True)),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", WINDOWED, causal),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", GROUPED, causal),
    "gptneox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", SIZES, causal),
    # Slices by the length of a static cache, which is a tensor.
    "opt": ("OPTConfig", "OPTForCausalLM", _OPT, partial(causal, static=False)),
    "falcon": ("FalconConfig", "FalconForCausalLM", SIZES, causal),
    "bloom": ("BloomConfig", "BloomForCausalLM", _BLOOM, causal),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", _GPT2, causal),
    "qwen2_moe": ("Qwen2MoeConfig", "Qwen2MoeForCausalLM", _MOE, causal),
    "olmoe": ("OlmoeConfig", "OlmoeForCausalLM", EXPERTS, causal),
    "mamba": ("MambaConfig", "MambaForCausalLM", _STATE, recurrent),
    "mamba2": ("Mamba2Config", "Mamba2ForCausalLM", _STATE2, recurrent),
    "bert": ("BertConfig", "BertModel", SIZES, encoder),
    "roberta": ("RobertaConfig", "RobertaModel", SIZES, encoder),
    "distilbert": ("DistilBertConfig", "DistilBertModel", _DISTILBERT, encoder),
    "albert": ("AlbertConfig", "AlbertModel", {**SIZES, "embedding_size": 16}, encoder),
    "electra": ("ElectraConfig", "ElectraModel", {**SIZES, "embedding_size": 16}, encoder),
    "modernbert": ("ModernBertConfig", "ModernBertModel", _MODERNBERT, encoder),
    "t5": ("T5Config", "T5ForConditionalGeneration", _T5, translating),
    "t5-forward": ("T5Config", "T5ForConditionalGeneration", _T5, forward),
    "bart": ("BartConfig", "BartForConditionalGeneration", _BART, translating),
    "vit": ("ViTConfig", "ViTModel", {**IMAGES, "intermediate_size": 48}, vision),
    "dinov2": ("Dinov2Config", "Dinov2Model", IMAGES, vision),
    "clip": ("CLIPVisionConfig", "CLIPVisionModel", {**IMAGES, "intermediate_size": 48}, vision),
    "convnext": ("ConvNextConfig", "ConvNextModel", _CONVNEXT, vision),
}


def load(names: Iterable[str]) -> None:
    """Import what families are made of, without making one."""
    for name in names:
        getattr(transformers, FAMILIES[name][1])


def calls(name: str, cached: Cached, *, whole: bool) -> Calls:
    """Build a family, and call its cached functions and what they stand for."""
    config, model, options, serve = FAMILIES[name]
    made = getattr(transformers, model)(getattr(transformers, config)(**options)).eval()
    return serve(made, cached, whole=whole)
