"""Families of transformers, tiny and with random weights, called as their ``generate`` or a server does."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
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
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
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

    def compared(batch: int, length: int) -> float:
        wanted = run(holder.prefill, holder.decode, batch, length)
        return furthest(wanted, run(prefill, decode, batch, length))

    return _cached(decode, prefill), max(compared(*size) for size in BATCHES)


def _cached(*functions: Any) -> list[CachedFunction]:
    return [function for function in functions if isinstance(function, CachedFunction)]


def recurrent(model: Any, cached: Cached, *, whole: bool) -> Calls:
    holder = Holder(model)
    function = cached(holder.recur)

    def run(step: Any, batch: int, length: int) -> Any:
        first = model(input_ids=tokens(batch, length), use_cache=True)
        return following(lambda ids: step(ids, first.cache_params), first.logits)

    return [function], max(furthest(run(holder.recur, *size), run(function, *size)) for size in BATCHES)


def encoder(model: Any, cached: Cached, *, whole: bool) -> Calls:
    holder = Holder(model)
    function = cached(holder.understand)

    def run(call: Any, batch: int, length: int) -> Any:
        mask = torch.ones(batch, length, dtype=torch.long)
        mask[0, -2:] = 0
        return call(tokens(batch, length), mask)

    return [function], max(furthest(run(holder.understand, *size), run(function, *size)) for size in BATCHES)


def vision(model: Any, cached: Cached, *, whole: bool) -> Calls:
    holder = Holder(model)
    function = cached(holder.look)
    images = [torch.randn(batch, 3, 32, 32) for batch in (2, 3, 2)]
    return [function], max(furthest(holder.look(image), function(image)) for image in images)


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

    def compared(batch: int, length: int) -> float:
        wanted = run(holder.encode, holder.write, batch, length)
        return furthest(wanted, run(encoded, written, batch, length))

    return _cached(written, encoded), max(compared(*size) for size in BATCHES)


def forward(model: Any, cached: Cached, *, whole: bool) -> Calls:
    """The decorated ``forward`` itself, which copies its configuration for the caches that it makes."""
    function = cached(model.forward)

    def run(call: Any, batch: int, length: int) -> Any:
        return call(input_ids=tokens(batch, length), decoder_input_ids=tokens(batch, length - 2)).logits

    return [function], max(furthest(run(model, *size), run(function, *size)) for size in BATCHES)


def generating(model: Any, cached: Cached, *, whole: bool) -> Calls:
    """The package's own ``generate`` of a model whose decorated ``forward`` is cached."""

    def run() -> Any:
        asked = {"min_new_tokens": 6, "max_new_tokens": 6, "do_sample": False, "output_logits": True}
        made = model.generate(tokens(2, 5), **asked, return_dict_in_generate=True)
        return made.sequences, made.logits

    wanted = run()
    model.forward = function = cached(model.forward)
    return [function], furthest(wanted, run())


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A configuration class, a model class, the options of the first, and how the model is called."""

    config: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)
    serve: Callable[..., Calls] = causal


def _decoder(name: str, options: dict[str, Any], serve: Any = causal) -> Family:
    return Family(config=f"{name}Config", model=f"{name}ForCausalLM", options=options, serve=serve)


def _model(name: str, options: dict[str, Any], serve: Any) -> Family:
    return Family(config=f"{name}Config", model=f"{name}Model", options=options, serve=serve)


_GPT2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "eos_token_id": 2}
_STATE = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
_T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
_BART = {
    "vocab_size": 64, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
}  # fmt: skip

FAMILIES: dict[str, Family] = {
    "llama": _decoder("Llama", GROUPED),
    "llama-generate": _decoder("Llama", GROUPED, generating),
    "mistral": _decoder("Mistral", WINDOWED),
    "qwen2": _decoder("Qwen2", GROUPED),
    "gemma2": _decoder("Gemma2", WINDOWED, partial(causal, static=True)),
    "gemma3": Family(config="Gemma3TextConfig", model="Gemma3ForCausalLM", options=WINDOWED),
    "phi3": _decoder("Phi3", GROUPED),
    "gptneox": _decoder("GPTNeoX", SIZES),
    "opt": _decoder(  # slices by the length of a static cache, which is a tensor
        "OPT", {**SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32}, partial(causal, static=False)
    ),
    "falcon": _decoder("Falcon", SIZES),
    "bloom": _decoder("Bloom", {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "gpt2": Family(config="GPT2Config", model="GPT2LMHeadModel", options=_GPT2),
    "qwen2_moe": _decoder(
        "Qwen2Moe", {**EXPERTS, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
    ),
    "olmoe": _decoder("Olmoe", EXPERTS),
    "mamba": _decoder("Mamba", _STATE, recurrent),
    "mamba2": _decoder(
        "Mamba2", {**_STATE, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8}, recurrent
    ),
    "bert": _model("Bert", SIZES, encoder),
    "roberta": _model("Roberta", SIZES, encoder),
    "distilbert": _model(
        "DistilBert", {"vocab_size": 64, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4}, encoder
    ),
    "albert": _model("Albert", {**SIZES, "embedding_size": 16}, encoder),
    "electra": _model("Electra", {**SIZES, "embedding_size": 16}, encoder),
    "modernbert": _model("ModernBert", {**SIZES, "cls_token_id": 1, "sep_token_id": 2}, encoder),
    "t5": Family(
        config="T5Config",
        model="T5ForConditionalGeneration",
        options=_T5,
        serve=translating,
    ),
    "t5-forward": Family(
        config="T5Config", model="T5ForConditionalGeneration", options=_T5, serve=forward
    ),
    "bart": Family(
        config="BartConfig", model="BartForConditionalGeneration", options=_BART, serve=translating
    ),
    "vit": _model("ViT", {**IMAGES, "intermediate_size": 48}, vision),
    "dinov2": _model("Dinov2", IMAGES, vision),
    "clip": Family(
        config="CLIPVisionConfig",
        model="CLIPVisionModel",
        options={**IMAGES, "intermediate_size": 48},
        serve=vision,
    ),
    "convnext": _model(
        "ConvNext", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "image_size": 32}, vision
    ),
}  # fmt: skip


def load(names: Iterable[str]) -> None:
    """Import what families are made of, without making one."""
    for name in names:
        getattr(transformers, FAMILIES[name].model)


def calls(name: str, cached: Cached, *, whole: bool) -> Calls:
    """Build a family, and call its cached functions and what they stand for."""
    family = FAMILIES[name]
    config = getattr(transformers, family.config)(**family.options)
    return family.serve(getattr(transformers, family.model)(config).eval(), cached, whole=whole)
