"""Chat command, `oxillama chat`: a conversation at the terminal, or with lines from standard input."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oxillama._util.checks import check_choice, is_unicode
from oxillama._util.signals import DeferredInterrupt
from oxillama.chat.calls import read_json
from oxillama.chat.dispatch import read_tools
from oxillama.chat.tool_format import FORMATS
from oxillama.cli.dialogue import Dialogue, note
from oxillama.cli.files import read_text_file
from oxillama.cli.options import draft_options, load_engine, text_options
from oxillama.cli.values import pairs
from oxillama.core.chat import template_for
from oxillama.core.options import PromptOptions, read_options
from oxillama.errors import ConfigError, ToolFormatError
from oxillama.gguf.values import printable

if TYPE_CHECKING:
    from oxillama.engine import Engine

__all__ = ["chat"]

COMMAND = re.compile(r"/[a-z]+")
HELP = """\
/help          lists this
/reset         forgets everything but the system message
/exit, /quit   leaves, as Ctrl-D does
Ctrl-C         stops an answer, of which counts what was said; at the prompt, a new line; twice, leaves
Other lines are messages, or what a call returned, which may be nothing."""


def chat(args: argparse.Namespace) -> int:
    """Answers messages until the end. The status is 1 if a line that isn't typed at a terminal has no whole answer."""
    if sys.stdin is None:
        raise ConfigError("standard input is closed: chat reads its messages there")
    prompt = prompt_options(args)
    given = text_options(args)  # before anything is loaded, since it raises for bad options
    terminal = sys.stdin.isatty()
    with load_engine(args) as engine, draft_options(args) as drafting:
        options = read_options("chat", given | drafting, engine.context.factory.default_chain)
        opening = [{"role": "system", "content": args.system}] if args.system else []
        if args.think is not None:
            template = template_for(engine.tokenizer, prompt.get("tools"), prompt.get("chat_template"))
            prompt["template_kwargs"] = with_switch(args.think, template.thinking(args.think), prompt)
        try:
            dialogue = Dialogue(engine, options, opening, prompt, interactive=terminal)
        except ToolFormatError as error:
            what, _, remedy = str(error).partition(": give tool_format=")
            why = remedy.partition("calls as text")[2]
            raise ConfigError(f"{what}: give --tool-format, one of {', '.join((*FORMATS, 'text'))}{why}") from None
        if terminal:
            with DeferredInterrupt(), contextlib.suppress(ImportError):  # input() edits lines with it, if it is there
                importlib.import_module("readline")
            note(greeting(engine))
            typed(dialogue)
            return 0
        return int(not piped(dialogue))


def prompt_options(args: argparse.Namespace) -> PromptOptions:
    """The options of the prompts. Raises ConfigError for files and values of another form."""
    found: PromptOptions = {}
    if args.chat_template is not None:
        found["chat_template"] = read_text_file("--chat-template", args.chat_template)
    if args.template_kwarg:
        found["template_kwargs"] = pairs("--template-kwarg", args.template_kwarg)
    if args.tool_format is not None:
        check_choice("--tool-format", args.tool_format, (*FORMATS, "text", "none"))
        if args.tools is None:
            raise ConfigError("--tool-format is for calls of tools: give --tools too")
        found["tool_format"] = args.tool_format
    if args.tools is not None:
        try:
            found["tools"] = read_json(read_text_file("--tools", args.tools))
        except ValueError as error:
            raise ConfigError(f"--tools {args.tools} must be a JSON list of functions: {error}") from None
        read_tools(found["tools"])
    return found


def with_switch(thinks: bool, switch: Mapping[str, Any], prompt: PromptOptions) -> dict[str, Any]:
    """Variables of the template with that of --think. Raises ConfigError for a --template-kwarg that contradicts it."""
    given = dict(prompt.get("template_kwargs") or {})
    for name, value in switch.items():
        if given.get(name, value) != value:
            flag = "--think" if thinks else "--no-think"
            raise ConfigError(f"{flag} is given, and --template-kwarg {name}={given[name]!r} says otherwise: give one")
    return given | dict(switch)


def greeting(engine: Engine) -> str:
    """A line that names the model."""
    path = engine.config.model_path
    file = os.path.basename(os.fsdecode(path)) if isinstance(path, str | os.PathLike) else "ships with oxillama"
    spec = engine.model_config
    names = f"{spec.name or spec.arch} ({file}, {spec.arch}, context of {engine.context_size:,} tokens)"
    return f"{printable(names)}: /help lists what can be typed."


def typed(dialogue: Dialogue) -> None:
    """Answers lines from a terminal, until Ctrl-D or a second Ctrl-C in a row at an empty line."""
    interrupted = False
    while True:
        try:
            line = read_line()
            interrupted = False
            if line is None or not obey(dialogue, line)[0]:
                return
        except KeyboardInterrupt:
            print(file=sys.stderr)
            if half_typed():
                interrupted = False
            elif interrupted:
                return
            else:
                interrupted = True
                note("(Ctrl-C again, or Ctrl-D, leaves)")


def half_typed() -> bool:
    """Whether Ctrl-C discarded a line in progress."""
    readline = sys.modules.get("readline")
    return readline is not None and bool(readline.get_line_buffer())


def piped(dialogue: Dialogue) -> bool:
    """Answers the lines of standard input; whether all of them have a whole answer."""
    fine = True
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="surrogateescape")  # as other commands read it
    for n, line in enumerate(sys.stdin, 1):
        if is_unicode(line):
            goes_on, whole = obey(dialogue, line)
        else:
            note(f"oxillama: error: line {n} of standard input is not UTF-8 (the message is left out)")
            goes_on, whole = True, False
        fine = fine and whole
        if not goes_on:
            break
    return fine


def read_line() -> str | None:
    """The next line that is typed; None at the end of the input."""
    prompt = "> "
    if not sys.stdout.isatty():  # where input() would write it
        print(prompt, end="", file=sys.stderr, flush=True)
        prompt = ""
    try:
        return input(prompt)
    except EOFError:
        print(file=sys.stderr)
        return None


def obey(dialogue: Dialogue, line: str) -> tuple[bool, bool]:
    """Runs a line: whether to continue, and whether it succeeded."""
    match line.strip():
        case "" if not dialogue.awaits_result:
            pass
        case "/exit" | "/quit":
            return False, True
        case "/reset":
            dialogue.reset()
        case "/help":
            note(HELP)
        case word if COMMAND.fullmatch(word):
            note(f"{word} is no command: /help lists them")
            return True, False
        case text:
            return True, dialogue.answer(text)
    return True, True
