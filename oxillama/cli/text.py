"""Text command, `oxillama run`."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

import oxillama
from oxillama.cli.options import draft_options, load_engine, read_prompt, text_options
from oxillama.cli.values import offload_line

if TYPE_CHECKING:
    from oxillama.core.results import FinishReason
    from oxillama.core.text_stream import Chunks

__all__ = ["deadline_line", "run", "speed_line"]

TIMED_OUT = 124  # as of the command `timeout`


def run(args: argparse.Namespace) -> int:
    """Streams the continuation of a prompt to standard output; the speed goes to standard error.

    The status is 124 if the deadline passed before its end.
    """
    prompt = read_prompt(args.prompt, "PROMPT")
    if not prompt:
        raise oxillama.ConfigError("PROMPT is empty: give at least one character")
    options = text_options(args)  # before anything is loaded, since it raises for bad options
    with load_engine(args) as engine, draft_options(args) as drafting:
        ids = engine.context.factory.ids("PROMPT", prompt)
        with closing(engine.stream(ids, **options, **drafting)) as stream:
            if args.echo:
                print(prompt, end="", flush=True)
            reason = _print(stream, len(ids))
        if counts := engine.offload_counts():
            print(offload_line(counts), file=sys.stderr)
    if reason == "deadline":
        print(deadline_line(args.deadline), file=sys.stderr)
        return TIMED_OUT
    return 0


def _print(stream: Chunks, n_prompt: int) -> FinishReason | None:
    """Prints a text as it comes, and then, also if it is interrupted, its speed. Returns why it ended."""
    first = ended = started = time.perf_counter()
    n_tokens, reason, failed = 0, None, False
    try:
        for chunk in stream:
            print(chunk.text, end="", flush=True)
            n_tokens, reason = n_tokens + len(chunk.token_ids), chunk.finish_reason
            ended = time.perf_counter()
            first = ended if first == started else first
    except oxillama.OxiLlamaError:
        failed = True
        raise
    finally:
        if n_tokens or not failed:
            print(flush=True)
            print(speed_line(n_prompt, n_tokens, first - started, ended - first), file=sys.stderr)
    return reason


def deadline_line(seconds: float) -> str:
    """Reports that a text was cut."""
    return f"[the text is not whole: its deadline of {seconds:g} s passed]"


def speed_line(n_prompt: int, n_tokens: int, prefill: float, decode: float) -> str:
    """A line with numbers of tokens and speeds."""
    parts = [f"{n_prompt} prompt tokens" + (f" in {prefill:.2f} s" if prefill > 0 else "")]
    parts.append(f"{n_tokens} generated" + (f", {(n_tokens - 1) / decode:.1f} tokens/s" if decode > 0 else ""))
    return f"[{'; '.join(parts)}]"
