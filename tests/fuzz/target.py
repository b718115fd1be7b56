"""What is fuzzed: how inputs begin, how they change, and what is held to be right of them."""

import importlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

__all__ = ["NAMES", "Target", "load", "sees", "told"]

NAMES = ("gguf", "snapshot", "adapter", "grammar", "schema", "regex", "chat", "request", "packed")

# Modules whose branches guide, beside the target's own; the whole package would be seen, too, but for more time.
SEEN = {
    "gguf": ("oxillama.gguf", "oxillama.tokenizer", "oxillama.models", "oxillama.core.loading"),
    "snapshot": ("oxillama.snapshot", "oxillama.kv_cache.kv_io", "oxillama.kv_cache.kv_io"),
    "adapter": ("oxillama.lora", "oxillama.gguf"),
    "grammar": ("oxillama.grammar",),
    "schema": ("oxillama.grammar",),
    "regex": ("oxillama.grammar",),
    "chat": ("oxillama.chat",),
    "request": ("oxillama.server",),
    "packed": ("oxillama.models.packed",),
}

Mutator = Callable[[Random, bytes, bytes], bytes]  # (draw, input, another input) -> a changed input


@dataclass(frozen=True)
class Target:
    """run: gives the input to the package, raises whatever is wrong, and returns what else tells inputs apart.

    Typed errors are no fault: `run` returns them (`told`). work: how often a branch may be taken, at all and for each
    byte. memory: bytes that may be allocated, at all and for each byte.
    """

    name: str
    run: Callable[[bytes], Iterable[str]]
    seeds: Callable[[], Sequence[bytes]]
    mutators: Sequence[Mutator]
    words: Sequence[bytes] = ()
    max_bytes: int = 1 << 16
    work: tuple[int, int] = (200_000, 200)
    memory: tuple[int, int] = (64 << 20, 2000)
    shrink: Sequence[Mutator] = field(default=())


def sees(name: str) -> tuple[str, ...]:
    """The modules whose branches guide; of another module than those here, it says so itself (`SEEN`)."""
    return SEEN[name] if name in SEEN else importlib.import_module(name).SEEN


def load(name: str) -> Target:
    """The target of a name, or of a module that has one."""
    module = importlib.import_module(f"tests.fuzz.targets.{name}" if name in NAMES else name)
    return module.TARGET


_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_WORD = re.compile(r"(?<![\w./-])[a-z]{2,}(?![\w./-])")


def told(error: BaseException) -> str:
    """An error without the values in its message: what kind of refusal it is."""
    words = _WORD.findall(_QUOTED.sub("", str(error).partition("\n")[0]))
    return f"{type(error).__name__}: {' '.join(words[:7])}"
