"""`oxillama run`."""

from __future__ import annotations

import argparse
import sys
import time

import oxillama
from oxillama.cli.options import draft_options, load_engine, read_prompt, text_options
from oxillama.cli.values import offload_line

__all__ = ["deadline_line", "run", "speed_line"]

TIMED_OUT = 124  # as of the command `timeout`


def run(args: argparse.Namespace) -> int:
    """Streams the continuation of a prompt to standard output; the speed goes to standard error.

    The status is 124 if the deadline passed before its end.
    """
    prompt = read_prompt(args.prompt, "PROMPT")
    if not prompt:
        raise oxillama.ConfigError("PROMPT is empty: give at least one character")
    with load_engine(args) as engine, draft_options(args) as drafting:
        ids = engine.tokenize(prompt)
        started = time.perf_counter()
        stream = engine.stream(ids, **text_options(args), **drafting)
        if args.echo:
            print(prompt, end="", flush=True)
        first = ended = started
        n_tokens, reason = 0, None
        try:
            for chunk in stream:
                print(chunk.text, end="", flush=True)
                n_tokens, reason = n_tokens + len(chunk.token_ids), chunk.finish_reason
                ended = time.perf_counter()
                first = ended if first == started else first
        finally:
            print(flush=True)
            stream.close()
            print(speed_line(len(ids), n_tokens, first - started, ended - first), file=sys.stderr)
            if counts := engine.offload_counts():
                print(offload_line(counts), file=sys.stderr)
    if reason == "deadline":
        print(deadline_line(args.deadline), file=sys.stderr)
        return TIMED_OUT
    return 0


def deadline_line(seconds: float) -> str:
    """Says that a text was cut."""
    return f"[the text is not whole: its deadline of {seconds:g} s passed]"


def speed_line(n_prompt: int, n_tokens: int, prefill: float, decode: float) -> str:
    """What was done, and how fast."""
    parts = [f"{n_prompt} prompt tokens" + (f" in {prefill:.2f} s" if prefill > 0 else "")]
    parts.append(f"{n_tokens} generated" + (f", {(n_tokens - 1) / decode:.1f} tokens/s" if decode > 0 else ""))
    return f"[{'; '.join(parts)}]"
