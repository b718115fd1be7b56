"""Denoising command, `oxillama diffuse`."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import oxillama
from oxillama.cli.options import load_engine, read_prompt
from oxillama.cli.text import speed_line

__all__ = ["OPTIONS", "diffuse"]

# Options of `Engine.diffuse`: type, and what they mean.
OPTIONS: dict[str, tuple[type, str]] = {
    "max_tokens": (int, "positions to write; default 128"),
    "steps": (int, "passes of the model; default: one for each position"),
    "block_length": (int, "write blocks of so many positions one after another"),
    "order": (str, "low_confidence, maskgit_plus, topk_margin, entropy, random or origin"),
    "eps": (float, "last of the times, without blocks; default 0.001"),
    "temperature": (float, "of tokens; default 0"),
    "top_p": (float, "of tokens; default 1"),
    "top_k": (int, "of tokens; default 0, all"),
    "order_temperature": (float, "draw the order too; default 0"),
    "cfg_scale": (float, "weight of the prompt beyond its own; default 0"),
    "seed": (int, "default random"),
    "mask_token": (int, "the mask's id, where the file names none"),
}


def diffuse(args: argparse.Namespace) -> int:
    """Prints what follows a prompt; steps and speed go to standard error."""
    prompt = read_prompt(args.prompt, "PROMPT")
    if not prompt:
        raise oxillama.ConfigError("PROMPT is empty: give at least one character")
    options: dict[str, Any] = {name: getattr(args, name) for name in OPTIONS if getattr(args, name) is not None}
    with load_engine(args) as engine:
        given = engine.chat_tokens([{"role": "user", "content": prompt}]) if args.chat else prompt
        if args.progress or sys.stderr.isatty():
            options["on_step"] = _show
        started = time.perf_counter()
        found = engine.diffuse(given, **options)
        seconds = time.perf_counter() - started
    if "on_step" in options:
        print(file=sys.stderr)
    print((prompt if args.echo else "") + found.text)
    print(speed_line(found.prompt_tokens, len(found.token_ids), 0.0, seconds), file=sys.stderr)
    return 0


def _show(n: int, tokens: list[int | None]) -> None:
    n_masks = sum(token is None for token in tokens)
    print(f"\rstep {n}: {n_masks} of {len(tokens)} masked ", end="", file=sys.stderr, flush=True)
