"""Train the model that ships with oxillama, from nothing, and write it as a Q8_0 GGUF file.

    pip install -e ".[train]"
    python oxillama/shipped/train_default.py       # writes oxillama/shipped/default.gguf

The script writes its own corpus (``train_stories``, ``train_chat``), trains a byte-level BPE of 1536 tokens on it
(``train_data``), trains a Llama-architecture model on freshly written documents, never twice on the same one
(``train_model``), and exports it (``train_export``). ``train_check`` measures the result, and ``train_draft`` trains
the draft model on it. Everything is seeded: the same seed gives the same corpus and tokenizer; the weights agree up to
the summation order of torch's threads.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from train_data import (
    VOCABULARY_SIZE,
    Batch,
    encoded_documents,
    packed_batches,
    single_batches,
    train_tokenizer,
)
from train_export import export_gguf, tokenizer_metadata
from train_model import SHAPES, Params, Shape, forward, init_params, logits

WARM_UP = 100  # steps
PEAK_RATE = 5e-3
TOKENS = 4096  # of one step
LONG_SHARE = 0.12  # of the steps, the last ones, have rows as long as the context


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up, then a cosine down to a hundredth of the peak."""
    if step < WARM_UP:
        return peak * (step + 1) / WARM_UP
    progress = (step - WARM_UP) / max(1, steps - WARM_UP)
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))


def make_optimizers(params: Params) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    matrices = [p for name, p in params.items() if p.ndim > 1 and name.startswith("blk.")]
    others = [p for name, p in params.items() if p.ndim == 1 or not name.startswith("blk.")]
    return [
        torch.optim.Muon(matrices, lr=0.0, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]


def set_rate(optimizers: list[torch.optim.Optimizer], rate: float) -> None:
    """The learning rate of the steps that follow."""
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        group["lr"] = rate


def descend(loss: torch.Tensor, params: Params, optimizers: list[torch.optim.Optimizer]) -> None:
    """One step of the optimisers against a loss, with gradients of norm 1 at most."""
    loss.backward()
    torch.nn.utils.clip_grad_norm_(params.values(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def train_step(
    params: Params, shape: Shape, optimizers: list[torch.optim.Optimizer], ids: torch.Tensor, mask: torch.Tensor
) -> float:
    """One step on ids [rows, length + 1], learning where mask is set; returns the loss in nats per token."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = forward(params, shape, ids[:, :-1])[mask[:, 1:]]
        loss = F.cross_entropy(logits(params, hidden), ids[:, 1:][mask[:, 1:]])
    descend(loss, params, optimizers)
    return float(loss.detach())


def make_batches(tokenizer: Tokenizer, seed: int, steps: int, length: int) -> Iterator[Batch]:
    """One batch a step: rows of one document each, and of several for the last steps."""

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    r = Random(f"single {seed}")
    n_single = math.ceil(steps * (1 - LONG_SHARE))
    yield from islice(single_batches(encoded_documents(encode, r), r, TOKENS), n_single)
    yield from packed_batches(encoded_documents(encode, Random(f"packed {seed}")), TOKENS, length)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train the model that ships with oxillama.")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("default.gguf"))
    parser.add_argument("--steps", type=int, default=4000, help="optimiser steps of 4096 tokens")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--export-every", type=int, default=500, help="also write the file every so many steps")
    return parser.parse_args()


def main() -> None:
    """Train, report every 25 steps, and export."""
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    shape, started = SHAPES["default"], time.perf_counter()
    tokenizer = train_tokenizer(args.seed)
    if tokenizer.get_vocab_size() != VOCABULARY_SIZE:
        sys.exit(f"the tokenizer has {tokenizer.get_vocab_size()} tokens instead of {VOCABULARY_SIZE}")
    params = init_params(shape, args.seed)
    optimizers, recent = make_optimizers(params), 0.0
    batches = make_batches(tokenizer, args.seed, args.steps, shape.context)
    print(
        f"{sum(p.numel() for p in params.values())} parameters, tokenizer after {time.perf_counter() - started:.0f} s",
        flush=True,
    )
    for step in range(args.steps):
        ids, mask = next(batches)
        set_rate(optimizers, learning_rate(step, args.steps, PEAK_RATE))
        recent += train_step(params, shape, optimizers, torch.from_numpy(ids), torch.from_numpy(mask))
        done = step + 1
        if done % 25 == 0:
            print(f"step {done} loss {recent / 25:.4f} after {time.perf_counter() - started:.0f} s", flush=True)
            recent = 0.0
        if done % args.export_every == 0 or done == args.steps:
            made = f"seed {args.seed}, {done} steps, {done * TOKENS} tokens"
            export_gguf(args.out, "default", shape, params, tokenizer_metadata(tokenizer), made)


if __name__ == "__main__":
    main()
