"""Models of transformers and diffusers: compiled in one process, loaded in the next with other weights.

They are small, have random weights, and are called as ``generate`` or a server calls them.
``families PHASE CACHE_DIR MODE NAME...`` prints a line of JSON for each name. In mode max-autotune, whose C++
compiler takes longest, prompts run eagerly (``whole`` is false). Each model has a process of its own, a fork:
some tables of these packages grow with every model that a process makes, and traced code reads them.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.support.checkout import ended
from warmrank.inference import cache_compile
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.runtime.function import CachedFunction

Cached = Callable[[Any], CachedFunction]
Calls = tuple[list[CachedFunction], float]
Found = dict[str, dict[str, Any]]

# Strings hash otherwise in the other process; ModernBERT goes over a set of two, which both order alike.
PHASES = {"cold": {"PYTHONHASHSEED": "1"}, "warm": {"PYTHONHASHSEED": "6", "WARMRANK_NO_COMPILE": "1"}}
TRACERS = ("torch._dynamo", "torch._inductor", "sympy", "torch.fx")


def run(cache: Path, mode: str, names: Sequence[str]) -> dict[str, Found]:
    """What models did in each phase, by phase and name; many at once on two cores."""
    processes = 1 if len(names) < 5 else 2
    shares = [list(names)[start::processes] for start in range(processes)]

    def together(phase: str) -> Found:
        with ThreadPoolExecutor(processes) as pool:
            parts = pool.map(lambda share: _phase(phase, cache, mode, share), shares)
            return {name: found for part in parts for name, found in part.items()}

    return {phase: together(phase) for phase in PHASES}


def _phase(phase: str, cache: Path, mode: str, names: list[str]) -> Found:
    own = {"HF_HUB_OFFLINE": "1", **PHASES[phase]}
    words = ("-m", "tests.support.families", phase, str(cache), mode, *names)
    done = ended(*words, given="", more=own, timeout_s=200 * len(names))  # 22 s of one core each, at most
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return {name: found for line in done.stdout.splitlines() for name, found in json.loads(line).items()}


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of an output, however it is packed."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [one for item in value for one in tensors(item)] if isinstance(value, list | tuple) else []


def furthest(wanted: Any, got: Any) -> float:
    """Largest absolute difference; that of other shapes or types is infinite."""
    pairs = list(zip(tensors(wanted), tensors(got), strict=True))
    if any((one.shape, one.dtype) != (other.shape, other.dtype) for one, other in pairs):
        return float("inf")
    return max(float((one.double() - other.double()).abs().max()) for one, other in pairs)


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

    def run(self, *args: Any) -> Any:
        return self.model(*args)

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
            kv = _of("transformers").StaticCache(config=model.config, max_cache_len=24)
        else:
            kv = _of("transformers").DynamicCache(config=model.config)
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
        caches = [_of("transformers").DynamicCache(config=model.config) for _ in range(2)]
        kv = _of("transformers").EncoderDecoderCache(*caches)
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


def block(model: Any, cached: Cached, *, whole: bool, inputs: Callable[[int, int], tuple[Any, ...]]) -> Calls:
    """A block of diffusers, for images and latents of several sizes."""
    holder = Holder(model)
    function = cached(holder.run)
    arguments = [inputs(*size) for size in ((2, 8), (3, 12), (2, 8))]
    return [function], max(furthest(holder.run(*args), function(*args)) for args in arguments)


def _image(batch: int, size: int) -> torch.Tensor:
    return torch.randn(batch, 8, size, size)


def _tokens(batch: int, size: int, width: int = 32) -> torch.Tensor:
    return torch.randn(batch, size, width)


def _time(batch: int) -> torch.Tensor:
    return torch.randn(batch, 16)


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
_ATTENTION, _RESNET, _UNET = "attention", "resnet", "unets.unet_2d_blocks"
_CROSSED = {"num_attention_heads": 2, "cross_attention_dim": 24}
_LAYERS: dict[str, Any] = {"temb_channels": 16, "resnet_groups": 4, "num_layers": 1}

# Configuration class, model class, the options of the first, and how the model is called.
TRANSFORMERS: dict[str, tuple[str, str, dict[str, Any], Callable[..., Calls]]] = {
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
# Module, class, its options, and inputs of a batch and a size.
DIFFUSERS: dict[str, tuple[str, str, dict[str, Any], Callable[[int, int], tuple[Any, ...]]]] = {
    "transformer": (
        _ATTENTION, "BasicTransformerBlock",
        {"dim": 32, "num_attention_heads": 4, "attention_head_dim": 8, "cross_attention_dim": 24},
        lambda b, n: (_tokens(b, n), None, _tokens(b, 5, 24)),
    ),
    "resnet": (
        _RESNET, "ResnetBlock2D", {"in_channels": 8, "out_channels": 12, "temb_channels": 16, "groups": 4},
        lambda b, n: (_image(b, n), _time(b)),
    ),
    "joint": (
        _ATTENTION, "JointTransformerBlock", {"dim": 32, "num_attention_heads": 4, "attention_head_dim": 8},
        lambda b, n: (_tokens(b, n), _tokens(b, 5), _tokens(b, 1)[:, 0]),
    ),
    "down": (
        _UNET, "CrossAttnDownBlock2D", {"in_channels": 8, "out_channels": 16, **_CROSSED, **_LAYERS},
        lambda b, n: (_image(b, n), _time(b), _tokens(b, 5, 24)),
    ),
    "up": (
        _UNET, "UpBlock2D", {"in_channels": 8, "prev_output_channel": 8, "out_channels": 16, **_LAYERS},
        lambda b, n: (_image(b, n), (_image(b, n),), _time(b)),
    ),
}  # fmt: skip


def _of(module: str) -> Any:
    return importlib.import_module(module)


def _class(name: str) -> Any:
    """What a family is made of; imported, not made."""
    if name in TRANSFORMERS:
        return getattr(_of("transformers"), TRANSFORMERS[name][1])
    return getattr(_of(f"diffusers.models.{DIFFUSERS[name][0]}"), DIFFUSERS[name][1])


def _calls(name: str, cached: Cached, *, whole: bool) -> Calls:
    """Build a family, and call its cached functions and what they stand for."""
    if name in DIFFUSERS:
        options, inputs = DIFFUSERS[name][2:]
        return block(_class(name)(**options).eval(), cached, whole=whole, inputs=inputs)
    config, _, given, serve = TRANSFORMERS[name]
    model = _class(name)(getattr(_of("transformers"), config)(**given)).eval()
    return serve(model, cached, whole=whole)


def _served(name: str, cache: Path, mode: str) -> dict[str, Any]:
    config = CompilerConfig()
    config.mode = mode
    known: set[str] = set()

    def cached(method: Any) -> CachedFunction:
        known.update(known or sys.modules)
        return cache_compile(method, cache_dir=cache / name, config=config, ge_cache=mode == "max-autotune")

    with torch.no_grad():
        functions, far = _calls(name, cached, whole=mode == "reduce-overhead")
    results = [function.last_result for function in functions]
    imported = [module for module in sys.modules if module not in known and module.startswith(TRACERS)]
    return {"outcomes": [result and result.outcome for result in results], "far": far, "imported": imported}


def _forked(name: str, cache: Path, mode: str, seed: int) -> dict[str, Any]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        torch.manual_seed(seed)
        try:
            found = _served(name, cache, mode)
        except BaseException:  # noqa: BLE001 - the parent shows it
            found = {"error": traceback.format_exc()[-3000:]}
        os.write(writer, json.dumps(found).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    used = os.wait4(child, 0)[2]
    found = json.loads(text) if text else {"error": "the process died"}
    return {**found, "cpu_s": round(used.ru_utime + used.ru_stime, 1)}


def main(phase: str, cache: str, mode: str, *names: str) -> None:
    torch.set_num_threads(1)
    for name in names:
        _class(name)
    if phase == "cold":
        importlib.import_module("warmrank.worker.compile.compiler")
    for name in names:
        found = _forked(name, Path(cache), mode, list(PHASES).index(phase))
        print(json.dumps({name: found}), flush=True)  # noqa: T201 - a line each


if __name__ == "__main__":
    main(*sys.argv[1:])
