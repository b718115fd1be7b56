"""Words of other programs' command lines: models where a text stands, and commands that are called otherwise here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from oxillama._util.checks import nearest
from oxillama.cli.files import is_hub_name, is_model
from oxillama.errors import ConfigError
from oxillama.store.library import hub_name_of, is_library_like
from oxillama.store.names import is_hub_like, read_hub_name
from oxillama.store.resolve import is_known

__all__ = ["model_in_place_of_text", "unknown_command"]

# What commands are called elsewhere.
COMMANDS = {
    "ls": "list", "models": "list", "tags": "list", "remove": "rm", "delete": "rm", "uninstall": "rm", "del": "rm",
    "download": "pull", "fetch": "pull", "get": "pull", "install": "pull", "generate": "run", "complete": "run",
    "completion": "run", "prompt": "run", "server": "serve", "start": "serve", "talk": "chat", "inspect": "show",
    "describe": "show", "status": "ps", "embedding": "embed", "embeddings": "embed", "perplexity": "bench",
    "benchmark": "bench", "convert": "quantize", "version": "--version", "help": "--help",
}  # fmt: skip
# Arguments after the model, of commands that take a text.
TEXTS = {
    "run": ' "PROMPT"',
    "diffuse": ' "PROMPT"',
    "tokenize": ' "TEXT"',
    "embed": ' "TEXT"',
    "rerank": ' "QUERY" "TEXT"',
}
WRITING = ("run", "diffuse", "chat", "bench", "serve")  # no text of these is a model's name by chance
LONGEST = 500


def unknown_command(given: str, commands: Iterable[str]) -> str:
    """Message for a command that there isn't, with what was most likely meant."""
    if is_model(given) or names_model(given, "chat"):
        return f"a model is given with -m, after a command: oxillama chat -m {given}"
    near = COMMANDS.get(given.lower()) or nearest(given.lower(), list(commands))
    return f"invalid choice: {given!r:.80} is no command" + (f"; did you mean oxillama {near}?" if near else "")


def model_in_place_of_text(command: str, texts: Sequence[str], given: str | None) -> str | None:
    """Message for a model that is given as the text, with the command line that was meant; None for other texts.

    given: the model of the command line, beside which a text is no name.
    """
    for text in texts:
        if text.startswith("-"):
            continue
        if is_model(text):
            return f"a model's file is given with -m: oxillama {command} -m {text}{TEXTS.get(command, '')}"
        if given is None and names_model(text, command):
            rest = [one for one in texts if one is not text and not one.startswith("-")]
            return habit(command, text, f' "{rest[0]}"' if rest else TEXTS.get(command, ""))
    return None


def names_model(text: str, command: str) -> bool:
    """Whether a text, which is a word, is the name of a model rather than words to go on with."""
    if not text or len(text) > LONGEST or any(c.isspace() or not c.isprintable() for c in text):
        return False
    if is_hub_like(text) or (is_hub_name(text) and ("/" in text)):
        return True
    return command in WRITING and (is_library_like(text) or is_known(text))


def habit(command: str, name: str, rest: str) -> str:
    """Message for a name of a model in the place of a text: what to type to run it, and to talk to it."""
    if is_known(name):
        talk = "" if command in ("chat", "serve", "bench") else f", or oxillama chat -m {name}"
        return f"a model is given with -m: oxillama {command} -m {name}{rest}{talk}"
    fetched = fetched_as(name)
    talk = "" if command in ("chat", "serve", "bench") else f", or oxillama chat -m {fetched}"
    return (
        f"{name} is a model's name, which is given with -m, and is not on this machine: oxillama pull {fetched}, then "
        f"oxillama {command} -m {fetched}{rest}{talk}"
    )


def fetched_as(name: str) -> str:
    """The name of the Hub under which a model is fetched."""
    try:
        found = read_hub_name(name, bare=is_hub_like(name))
    except ConfigError:
        found = None
    return str(found) if found is not None else hub_name_of(name) or "hf:OWNER/REPO"
