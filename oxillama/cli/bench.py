"""Benchmark command, `oxillama bench`: speed of prefill and decoding."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from oxillama._util.checks import check_int
from oxillama.cli.contention import Watch
from oxillama.cli.options import load_engine
from oxillama.config import MAX_CONTEXT, SamplerConfig
from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from oxillama.engine import Engine

__all__ = ["bench"]


def bench(args: argparse.Namespace) -> int:
    """Prints medians over repetitions, after one that doesn't count."""
    for flag, given, least in (("--prompt-tokens", args.prompt_tokens, 1), ("--gen-tokens", args.gen_tokens, 2)):
        if given is not None:
            check_int(flag, given, least, MAX_CONTEXT)
    repetitions = check_int("--repetitions", args.repetitions, 1, 10_000)
    started = time.perf_counter()
    with load_engine(args) as engine:
        load_seconds = time.perf_counter() - started
        n_prompt = fitting("--prompt-tokens", args.prompt_tokens, 512, 1, engine.context_size)
        n_tokens = fitting("--gen-tokens", args.gen_tokens, 128, 2, engine.context_size)
        measure(engine, n_prompt, n_tokens)
        watch = Watch()
        runs = [measure(engine, n_prompt, n_tokens) for _ in range(repetitions)]
        contention = watch.end()
        result = {
            "model": engine.model_config.name or engine.model_config.arch,
            "threads": engine.num_threads,
            "load_seconds": load_seconds,
            "prefill": summary(n_prompt, [run[0] for run in runs]),
            "decode": summary(n_tokens, [run[1] for run in runs]),
            "contention": {**asdict(contention), "said": contention.said},
        }
    print(json.dumps(result) if args.json else text(result))
    return 0


def fitting(flag: str, given: int | None, usual: int, least: int, context_size: int) -> int:
    """Tokens to measure with: those given, or the usual number if the context holds so many.

    One place is left for the other part: the output of a prompt, or the prompt of an output. Raises ConfigError.
    """
    most = context_size - 1
    if most < least:
        raise ConfigError(f"{flag} needs a --context-size of at least {least + 1}, not {context_size}")
    if given is not None and given > most:
        raise ConfigError(f"{flag} must be from {least} to {most}, one less than --context-size, not {given}")
    return min(usual, most) if given is None else given


def measure(engine: Engine, n_prompt: int, n_tokens: int) -> tuple[float, float]:
    """Tokens per second of a prompt, and of greedy decoding from a prompt of one token."""
    # Any ids do: no kernel's speed depends on them. Spread out, they don't all read one row of the embedding.
    ids = [(7919 * i + 1) % engine.n_vocab for i in range(n_prompt)]
    greedy = SamplerConfig.greedy()
    # The prefix cache would have the whole prompt from the second run on.
    prompt = engine.generate(ids, max_tokens=1, sampler=greedy, ignore_eos=True, cache_prompt=False)
    output = engine.generate(ids[:1], max_tokens=n_tokens, sampler=greedy, ignore_eos=True, cache_prompt=False)
    n_decoded = len(output.token_ids) - 1  # the first comes with the prompt
    return n_prompt / prompt.timings.prefill_seconds, n_decoded / output.timings.decode_seconds


def summary(n: int, speeds: list[float]) -> dict[str, Any]:
    """The median and its values."""
    return {"tokens": n, "tokens_per_second": statistics.median(speeds), "runs": speeds}


def text(result: dict[str, Any]) -> str:
    """The result as text."""
    lines = [f"{result['model']}, {result['threads']} threads, loaded in {result['load_seconds']:.2f} s"]
    for name in ("prefill", "decode"):
        found = result[name]
        spread = f"{min(found['runs']):.1f} to {max(found['runs']):.1f} in {len(found['runs'])} runs"
        lines.append(f"{name:8}{found['tokens']:5} tokens  {found['tokens_per_second']:10.1f} tokens/s  ({spread})")
    if taken := result["contention"]["said"]:
        lines.append(f"not of the machine alone: {taken}")
    return "\n".join(lines)
