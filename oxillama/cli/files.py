"""Files that a command line names: models, adapters, and files of text; also on the Hugging Face Hub."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys

from oxillama._util.signals import DeferredInterrupt
from oxillama._util.text_files import read_text
from oxillama.errors import ConfigError, LoadError
from oxillama.store.names import read_hub_name
from oxillama.store.resolve import find_model

__all__ = [
    "import_hub",
    "is_model",
    "model_file",
    "named_file",
    "named_model",
    "note",
    "output_file",
    "read_text_file",
    "scaled",
]

MAGIC = b"GGUF"


def model_file(name: str, given: str | None) -> str | None:
    """The path of a model, if one is given. ConfigError for an empty name, as an unset shell variable leaves it."""
    return None if given is None else named_model(name, given, ", or leave it out for the one that ships")


def named_model(name: str, given: str, otherwise: str = "") -> str:
    """The path of a model to read: a file's, ~ for the home folder, a name of the store, or of the Hub, from where it
    is fetched unless it is here.

    Raises ConfigError, with the name of the argument, for what is none; `otherwise` is said after the remedy. Raises
    LoadError and its children for trouble with the Hub.
    """
    if not given:
        raise ConfigError(f"{name} is empty: give a GGUF file{otherwise}")
    if is_hub_name(given):
        import_hub()
    return find_model(given, name, say=note)


def named_file(name: str, given: str) -> str:
    """The path of another file to read, such as an adapter: ~ is the home folder, and hf:OWNER/REPO/FILE is fetched.

    Raises ConfigError, with the name of the argument, for what is neither, and what `named_model` raises.
    """
    if not given:
        raise ConfigError(f"{name} is empty: give a GGUF file")
    if is_hub_name(given):
        hub_name = read_hub_name(given, name)
        if hub_name is None or hub_name.filename is None:
            raise ConfigError(f"{name} must be hf:OWNER/REPO/FILE, such as hf:owner/model-GGUF/model.gguf, not {given}")
        return named_model(name, given)
    return os.path.expanduser(given)


def is_hub_name(given: str) -> bool:
    """Whether a text begins as a name or an address of the Hub."""
    try:
        return read_hub_name(given) is not None
    except ConfigError:
        return True


def note(text: str) -> None:
    """Tells something beside a command's output."""
    if sys.stderr is not None:
        from oxillama.gguf.values import printable

        print(printable(text), file=sys.stderr)


def import_hub() -> None:
    """Imports the Hub's library, as quiet as it can be. Raises LoadError without it."""
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # it warns about every failed attempt
    if sys.stderr is None or not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        with DeferredInterrupt():  # before the download, which Ctrl-C stops
            importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise LoadError(f"the Hub needs huggingface_hub, which can't be imported ({error})") from error


def output_file(name: str, given: str) -> str:
    """The path of a file to write. ConfigError for an empty one, and for one on the Hub."""
    if not given:
        raise ConfigError(f"{name} is empty: give the name of a file to write")
    if is_hub_name(given):
        raise ConfigError(f"{name} must be a file here, not {given}: nothing is written to the Hub")
    return os.path.expanduser(given)


def scaled(flag: str, given: list[list[str]]) -> list[tuple[str, float]]:
    """Pairs of a file and a number. ConfigError, with the flag, for other things."""
    found = []
    for path, scale in given:
        try:
            number = float(scale)
        except ValueError:
            raise ConfigError(f"{flag} must have a number after the file, not {scale!r}") from None
        found.append((named_file(flag, path), number))
    return found


def read_text_file(flag: str, path: str) -> str:
    """The text of a file. ConfigError, with the flag, if it can't be read or isn't text."""
    if not path:
        raise ConfigError(f"{flag} is empty: give a file")
    try:
        return read_text(os.path.expanduser(path))
    except OSError as error:
        raise ConfigError(f"{flag} {path} can't be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        why = error.reason if "UTF-16" in error.reason else "text is needed"
        raise ConfigError(f"{flag} {path} is not UTF-8 at byte {error.start}: {why}") from None
    except ValueError as error:  # a null byte
        raise ConfigError(f"{flag} {path!r} can't be read: {error}") from None


def is_model(text: str) -> bool:
    """Whether a word is the name of a GGUF file rather than text."""
    if text.lower().endswith(".gguf") and not any(c.isspace() for c in text.strip()):
        return True
    if "\0" in text:
        return False
    path = os.path.expanduser(text)
    if not os.path.isfile(path):  # false for invalid names, and for a pipe, whose reading may never end
        return False
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC
    return False
