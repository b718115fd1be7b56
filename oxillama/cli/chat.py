"""`oxillama chat`: a dialogue at the terminal, or with lines from standard input."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING

import oxillama
from oxillama.cli.options import draft_options, load_engine, text_options
from oxillama.cli.text import deadline_line
from oxillama.engine.options import TextOptions, parse_options

if TYPE_CHECKING:
    from oxillama.engine import Engine
    from oxillama.engine.conversation import Conversation

__all__ = ["chat"]


def chat(args: argparse.Namespace) -> int:
    """Reads messages until the end; each turn computes only what is new."""
    if sys.stdin is None:
        raise oxillama.ConfigError("standard input is closed: chat reads its messages there")
    with load_engine(args) as engine, draft_options(args) as drafting:
        given = text_options(args) | drafting
        options = parse_options(
            "chat",
            max_tokens=given.pop("max_tokens"),
            stop=given.pop("stop"),
            ignore_eos=given.pop("ignore_eos"),
            sampler=None,
            cancel_token=None,
            sampling=given,
        )
        conversation = engine.conversation()
        opening = [{"role": "system", "content": args.system}] if args.system else []
        messages = list(opening)
        while (line := _read()) is not None:
            match line.strip():
                case "":
                    continue
                case "/exit" | "/quit":
                    break
                case "/reset":
                    messages = list(opening)
                    conversation.reset()
                case text:
                    _turn(engine, conversation, messages, text, options)
    return 0


def _read() -> str | None:
    """The next line; None at the end of the input, or for Ctrl-C."""
    terminal = sys.stdin.isatty()
    try:
        return input("> " if terminal else "")
    except (EOFError, KeyboardInterrupt):
        if terminal:
            print()
        return None


def _turn(
    engine: Engine, conversation: Conversation, messages: list[dict[str, str]], text: str, options: TextOptions
) -> None:
    """One message and its answer, which Ctrl-C cuts short; what was said until then counts."""
    messages.append({"role": "user", "content": text})
    answer, reason = [], None
    try:
        stream = conversation.stream(engine.chat_tokens(messages), options)
        with contextlib.closing(stream), contextlib.suppress(KeyboardInterrupt):
            for chunk in stream:
                print(chunk.text, end="", flush=True)
                answer.append(chunk.text)
                reason = chunk.finish_reason
    except oxillama.ContextOverflowError as error:
        messages.pop()
        print(f"oxillama: error: {error} (/reset starts anew)", file=sys.stderr)
        return
    print(flush=True)
    if reason == "deadline":
        print(deadline_line(options.serving.deadline or 0.0), file=sys.stderr)
    messages.append({"role": "assistant", "content": "".join(answer)})
