"""`oxillama bench`: how fast prompts are read and tokens written."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import TYPE_CHECKING, Any

import oxillama
from oxillama.cli.arguments import engine_options
from oxillama.config import MAX_CONTEXT, SamplerConfig, check_int

if TYPE_CHECKING:
    from oxillama.engine import Engine

__all__ = ["bench"]


def bench(args: argparse.Namespace) -> int:
    """Prints medians over repetitions, after one that doesn't count."""
    n_prompt = check_int("--prompt-tokens", args.prompt_tokens, 1, MAX_CONTEXT)
    n_tokens = check_int("--gen-tokens", args.gen_tokens, 2, MAX_CONTEXT)
    repetitions = check_int("--repetitions", args.repetitions, 1, 10_000)
    started = time.perf_counter()
    with oxillama.load(**engine_options(args)) as engine:
        load_seconds = time.perf_counter() - started
        measure(engine, n_prompt, n_tokens)
        runs = [measure(engine, n_prompt, n_tokens) for _ in range(repetitions)]
        result = {
            "model": engine.model_config.name or engine.model_config.arch,
            "threads": engine.num_threads,
            "load_seconds": load_seconds,
            "prefill": summary(n_prompt, [run[0] for run in runs]),
            "decode": summary(n_tokens, [run[1] for run in runs]),
        }
    print(json.dumps(result) if args.json else text(result))
    return 0


def measure(engine: Engine, n_prompt: int, n_tokens: int) -> tuple[float, float]:
    """Tokens per second of a prompt, and of greedy decoding from a prompt of one token."""
    # Any ids do: no kernel's speed depends on them. Spread out, they don't all read one row of the embedding.
    ids = [(7919 * i + 1) % engine.n_vocab for i in range(n_prompt)]
    greedy = SamplerConfig.greedy()
    prompt = engine.generate(ids, max_tokens=1, sampler=greedy, ignore_eos=True)
    output = engine.generate(ids[:1], max_tokens=n_tokens, sampler=greedy, ignore_eos=True)
    n_decoded = len(output.token_ids) - 1  # the first comes with the prompt
    return n_prompt / prompt.timings.prefill_seconds, n_decoded / output.timings.decode_seconds


def summary(n: int, speeds: list[float]) -> dict[str, Any]:
    """The median and what it is of."""
    return {"tokens": n, "tokens_per_second": statistics.median(speeds), "runs": speeds}


def text(result: dict[str, Any]) -> str:
    """The result for people."""
    lines = [f"{result['model']}, {result['threads']} threads, loaded in {result['load_seconds']:.2f} s"]
    for name in ("prefill", "decode"):
        found = result[name]
        spread = f"{min(found['runs']):.1f} to {max(found['runs']):.1f} in {len(found['runs'])} runs"
        lines.append(f"{name:8}{found['tokens']:5} tokens  {found['tokens_per_second']:10.1f} tokens/s  ({spread})")
    return "\n".join(lines)
