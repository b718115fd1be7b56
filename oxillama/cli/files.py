"""Files that a command line names: models, adapters, and files of text; also on the Hugging Face Hub."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys

from oxillama._util.signals import DeferredInterrupt
from oxillama._util.text_files import read_text
from oxillama.errors import ConfigError

__all__ = ["is_model", "model_file", "named_file", "output_file", "read_text_file", "scaled"]

HUB = "hf:"
MAGIC = b"GGUF"


def model_file(name: str, given: str | None) -> str | None:
    """A file as given, if any. ConfigError for an empty name, as an unset shell variable leaves it."""
    return None if given is None else named_file(name, given, ", or leave it out for the one that ships")


def named_file(name: str, given: str, otherwise: str = "") -> str:
    """The path of a file to read: ~ is the home folder, and hf:OWNER/REPO/FILE is downloaded from the Hub.

    Raises ConfigError, with the name of the argument, for what is neither; `otherwise` is said after the remedy.
    Raises LoadError and its children for trouble with the Hub.
    """
    if not given:
        raise ConfigError(f"{name} is empty: give a GGUF file{otherwise}")
    if given.startswith(HUB):
        return _downloaded(name, given)
    return os.path.expanduser(given)


def output_file(name: str, given: str) -> str:
    """The path of a file to write. ConfigError for an empty one, and for one on the Hub."""
    if not given:
        raise ConfigError(f"{name} is empty: give the name of a file to write")
    if given.startswith(HUB):
        raise ConfigError(f"{name} must be a file here, not {given}: nothing is written to the Hub")
    return os.path.expanduser(given)


def _downloaded(name: str, given: str) -> str:
    owner, _, rest = given.removeprefix(HUB).partition("/")
    repo, _, filename = rest.partition("/")
    if not owner or not repo or not filename:
        raise ConfigError(f"{name} must be hf:OWNER/REPO/FILE, such as hf:owner/model-GGUF/model.gguf, not {given}")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # it warns about every failed attempt
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"[{filename} of {owner}/{repo} on the Hugging Face Hub]", file=sys.stderr)
    else:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with DeferredInterrupt(), contextlib.suppress(ImportError):  # before the download, which Ctrl-C stops
        importlib.import_module("huggingface_hub")
    from oxillama.hub import download

    try:
        return download(f"{owner}/{repo}", filename)
    except ConfigError as error:
        raise ConfigError(f"{name} {given}: {error}") from None


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
    path = os.path.expanduser(text)
    if not os.path.isfile(path):  # false for invalid names, and for a pipe, whose reading may never end
        return False
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC
    return False
