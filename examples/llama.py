"""The workload of the demo: a Llama decoder, split over the ranks, that reads text byte by byte.

`workload` is the entrypoint of a launch (``warmrank.examples.llama:workload``). Weights are random, from a
seed: nothing has to be downloaded, and what is generated makes no sense.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from dataclasses import fields

import torch
import torch.distributed as dist

from warmrank.examples.llama_model import Llama, build_model
from warmrank.examples.llama_reference import reference_logits
from warmrank.examples.llama_weights import LlamaSizes, Weights, full_weights
from warmrank.worker.errors import WorkloadError
from warmrank.worker.rank.workload import Call, RankContext, Workload
from warmrank.worker.results import Verification

# Lewis Carroll, "Alice's Adventures in Wonderland" (1865), the first lines.
TEXT = (
    b"Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to "
    b"do: once or twice she had peeped into the book her sister was reading, but it had no pictures or "
    b"conversations in it, 'and what is the use of a book,' thought Alice 'without pictures or "
    b"conversations?' So she was considering in her own mind (as well as she could, for the hot day made her "
    b"feel very sleepy and stupid), whether the pleasure of making a daisy-chain would be worth the trouble "
    b"of getting up and picking the daisies, when suddenly a White Rabbit with pink eyes ran close by her."
)

# Sums of float32 taken in another order differ by about 1e-6 where logits are of size 1; a wrong mask,
# position or shard differs by 1e-1.
TOLERANCE = 1e-4


def workload(
    context: RankContext,
    *,
    prompt_len: int = 32,
    check_prompt_len: int = 47,
    num_tokens: int = 8,
    **sizes: int,
) -> Workload:
    """The model on this rank, the calls to warm up with, and the comparison with the reference.

    Args:
        context: this rank's place; its group ``tp`` splits the model.
        prompt_len: bytes of the prompt that is warmed up with.
        check_prompt_len: bytes of a second prompt, which only the check uses: nothing is warmed for it.
        num_tokens: bytes that the check generates after each prompt.
        sizes: sizes of the model, as in `LlamaSizes`.

    Raises:
        WorkloadError: an argument that is unknown or does not fit, or a world that the model cannot use.
        ValueError: sizes that do not fit each other, or cannot be split over the group.
    """
    if context.group_size("pp") > 1:
        msg = f"examples.llama has no pipeline stages; parallel.pp is {context.group_size('pp')}, set it to 1"
        raise WorkloadError(msg, argument="pp")
    model_sizes = sizes_from(sizes)
    prompt_lens = (prompt_len, check_prompt_len)
    check_lengths(model_sizes, prompt_lens, num_tokens)
    group = context.groups.get("tp")
    weights = full_weights(model_sizes)
    model = build_model(model_sizes, weights, group=group, device=context.device)
    prompt = prompts(model_sizes.batch, prompt_len).to(context.device)
    token = prompt[:, -1:].clone()
    return Workload(
        model=model,
        calls=(
            Call(function=model.cached_prefill, args=(prompt, positions(0, prompt))),
            Call(function=model.cached_decode, args=(token, positions(prompt_len, token))),
        ),
        check=functools.partial(check, model, weights, prompt_lens, num_tokens, group),
    )


def sizes_from(arguments: Mapping[str, int]) -> LlamaSizes:
    """Sizes by name.

    Raises:
        WorkloadError: a name that no size has.
        ValueError: sizes that do not fit each other.
    """
    known = [field.name for field in fields(LlamaSizes)]
    for name in arguments:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            msg = (
                f"examples.llama has no argument {name!r}; {hint}"
                f"Known: prompt_len, check_prompt_len, num_tokens, {', '.join(known)}"
            )
            raise WorkloadError(msg, argument=name)
    return LlamaSizes(**arguments)


def check_lengths(sizes: LlamaSizes, prompt_lens: tuple[int, ...], num_tokens: int) -> None:
    """Refuse prompts that do not fit into the KV cache.

    Raises:
        WorkloadError: a prompt shorter than 2 bytes, no token to generate, or more than the cache holds.
    """
    if min(prompt_lens) >= 2 and num_tokens >= 1 and max(prompt_lens) + num_tokens <= sizes.max_seq:
        return
    msg = (
        f"examples.llama: prompts of {' and '.join(map(str, prompt_lens))} bytes, and {num_tokens} more to "
        "generate; expected prompts of at least 2 bytes, at least 1 more, "
        f"and no more than max_seq = {sizes.max_seq} in all"
    )
    raise WorkloadError(msg, argument="prompt_len")


def prompts(batch: int, length: int) -> torch.Tensor:
    """Pieces of the text as tokens (batch, length); each row starts elsewhere."""
    starts = range(0, batch * 7, 7)
    rows = [[TEXT[(start + offset) % len(TEXT)] for offset in range(length)] for start in starts]
    return torch.tensor(rows)


def positions(start: int, tokens: torch.Tensor) -> torch.Tensor:
    """Positions of tokens (B, S) that follow `start` others."""
    return torch.arange(start, start + tokens.size(1), device=tokens.device)


def generate(
    model: Llama, prompt: torch.Tensor, num_tokens: int, group: dist.ProcessGroup | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Continue a prompt greedily.

    Args:
        model: the model; its KV cache is overwritten.
        prompt: tokens (B, S).
        num_tokens: tokens to generate.
        group: ranks that hold the model together.

    Returns:
        All tokens (B, S + num_tokens), and the logits (B, num_tokens, vocab) that chose the new ones.
    """
    tokens, fed, steps = prompt, prompt, []
    for _ in range(num_tokens):
        start = tokens.size(1) - fed.size(1)
        # Cloned, because the next replay of the same graph may write its output to the same place.
        logits = model(fed, positions(start, fed)).clone()
        fed = logits.argmax(-1, keepdim=True)
        if group is not None:
            # Processors of several kinds round differently; all ranks have to go on with the same token.
            dist.broadcast(fed, group=group, group_src=0)
        steps.append(logits)
        tokens = torch.cat((tokens, fed), dim=1)
    return tokens, torch.stack(steps, dim=1)


def check(
    model: Llama,
    weights: Weights,
    prompt_lens: tuple[int, ...],
    num_tokens: int,
    group: dist.ProcessGroup | None,
) -> Verification:
    """Compare the model with the reference, which reads the generated text whole, without cache or ranks."""
    max_error = 0.0
    for prompt_len in prompt_lens:
        prompt = prompts(model.sizes.batch, prompt_len).to(model.output.weight.device)
        tokens, logits = generate(model, prompt, num_tokens, group)
        expected = reference_logits(model.sizes, weights, tokens[:, :-1].cpu())[:, prompt_len - 1 :]
        errors = (logits.cpu() - expected).abs().nan_to_num(nan=float("inf"))
        max_error = max(max_error, errors.max().item())
    return Verification(
        ok=max_error <= TOLERANCE,
        max_error=max_error,
        tolerance=TOLERANCE,
        compared=(
            f"logits of {num_tokens} greedy tokens after prompts of "
            f"{' and '.join(map(str, prompt_lens))} bytes, "
            "with an eager single-process run of the same weights"
        ),
    )
