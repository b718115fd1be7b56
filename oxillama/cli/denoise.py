"""Denoising command, `oxillama diffuse`."""

from __future__ import annotations

import argparse
import sys
import time

import oxillama
from oxillama._util.settings import Setting, settings_of
from oxillama.cli.flags import add_flags, given
from oxillama.cli.options import add_engine_options, load_engine, read_prompt
from oxillama.cli.text import speed_line
from oxillama.text_settings import DiffusionSettings

__all__ = ["add_diffuse_options", "diffuse", "diffuse_settings"]

# Options of `Engine.diffuse` that are no flags: functions, what Ctrl-C does, and what --lora does.
LEFT_OUT = ("on_step", "cancel_token", "lora")


def add_diffuse_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="text; - or nothing reads standard input")
    parser.add_argument("--echo", action="store_true", help="print the prompt too")
    parser.add_argument("--chat", action="store_true", help="the prompt is a message, for the model's chat template")
    parser.add_argument("--progress", action="store_true", help="show the steps even if stderr is no terminal")
    add_flags(parser.add_argument_group("denoising"), diffuse_settings(), {"max_tokens": "-n"})
    add_engine_options(parser)


def diffuse_settings() -> list[Setting]:
    """Options of `Engine.diffuse` that are flags."""
    return [one for name, one in settings_of(DiffusionSettings).items() if name not in LEFT_OUT]


def diffuse(args: argparse.Namespace) -> int:
    """Prints what follows a prompt; steps and speed go to standard error."""
    prompt = read_prompt(args.prompt, "PROMPT")
    if not prompt:
        raise oxillama.ConfigError("PROMPT is empty: give at least one character")
    options = given(args, diffuse_settings())
    with load_engine(args) as engine:
        start = engine.chat_tokens([{"role": "user", "content": prompt}]) if args.chat else prompt
        if args.progress or sys.stderr.isatty():
            options["on_step"] = _show
        started = time.perf_counter()
        found = engine.diffuse(start, **options)
        seconds = time.perf_counter() - started
    if "on_step" in options:
        print(file=sys.stderr)
    print((prompt if args.echo else "") + found.text)
    print(speed_line(found.prompt_tokens, len(found.token_ids), 0.0, seconds), file=sys.stderr)
    return 0


def _show(n: int, tokens: list[int | None]) -> None:
    n_masks = sum(token is None for token in tokens)
    print(f"\rstep {n}: {n_masks} of {len(tokens)} masked ", end="", file=sys.stderr, flush=True)
