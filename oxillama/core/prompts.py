"""Prompts: texts, token ids and messages that callers give, checked."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from oxillama._util.checks import are_ints, check_flag, check_int
from oxillama.errors import ConfigError, ContextOverflowError, TokenizerError, UnsupportedModelError
from oxillama.tokenizer import Tokenizer

__all__ = [
    "Messages",
    "Side",
    "Tools",
    "Truncate",
    "check_callback",
    "check_length",
    "check_no_table",
    "check_token",
    "check_tokens",
    "check_truncate",
    "cut_ids",
    "cut_text",
    "fim_marks",
    "infill_ids",
    "opening",
    "plain",
    "read_prompt",
    "read_prompts",
]

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any] | Callable[..., Any]] | None

# Methods that give Python's own values: of pyarrow's scalars, of its arrays, of NumPy and pandas, of polars.
_TO_PYTHON = ("as_py", "to_pylist", "tolist", "to_list")
_NULLS = ("NAType", "NaTType")  # pandas' own
# Of a text for each token of the context: with no more, it is tokenised before it is known whether it fits.
CHARACTERS = 8
MARGIN = 64  # tokens by which the part of a long text that is tokenised is longer than what is kept of it

Side = Literal["end", "start"]  # the end of a text at which tokens are left out
Truncate = Literal["end", "start", False]


def check_token(name: str, value: Any, n_vocab: int) -> int:
    """`value` as a token id. Raises TokenizerError, which gives its name and the range."""
    try:
        return check_int(name, value, 0, n_vocab - 1)
    except ConfigError as error:
        raise TokenizerError(f"{error} (token ids of this model)") from None


def check_tokens(name: str, values: Any, n_vocab: int) -> list[int]:
    """Token ids as a list of int. Raises TokenizerError, which gives position, value and range of the first bad one."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TokenizerError(f"{name} must be token ids, not {type(values).__name__}")
    ids: list[Any]
    try:
        ids = list(plain(name, values))
    except ConfigError:  # a null among them, which is named below
        ids = list(values)
    if are_ints(ids, 0, n_vocab - 1):
        return ids
    return [check_token(f"{name}[{i}]", v, n_vocab) for i, v in enumerate(ids)]


def plain(name: str, value: Any) -> Any:
    """Text, token ids, or a list of these, that pyarrow, pandas, polars or NumPy hold, as Python's own; others as is.

    Raises ConfigError for tables, and for a null, whose place it names.
    """
    if isinstance(value, str | bytes):
        return value
    found = value
    if type(value) is not list and type(value) is not tuple:
        check_no_table(name, value)
        convert = next((found for method in _TO_PYTHON if (found := getattr(value, method, None)) is not None), None)
        found = value if convert is None or isinstance(value, type) else convert()
    if isinstance(found, list | tuple) and found and type(found[0]) is not int:
        found = [one.as_py() if hasattr(one, "as_py") else one for one in found]
        for i, one in enumerate(found):
            _check_no_null(f"{name}[{i}]", one)
    if found is not value:
        _check_no_null(name, found)
    return found


def check_no_table(name: str, value: Any) -> None:
    """Raises ConfigError for a table, of which Python would see the names of the columns."""
    if hasattr(type(value), "columns"):  # without asking a lazy table for them
        raise ConfigError(f"{name} is a table ({type(value).__name__}): give one of its columns")


def _check_no_null(name: str, value: Any) -> None:
    if value is None or type(value).__name__ in _NULLS or (isinstance(value, float) and math.isnan(value)):
        raise ConfigError(f"{name} is null ({value}): leave it out, or give text or token ids")


def read_prompts(name: str, given: Any) -> tuple[bool, list[tuple[str, Any]]]:
    """Whether `given` is one prompt, rather than a list of them; and each prompt with what messages call it.

    Raises ConfigError for anything else than text, token ids or a list of these.
    """
    if isinstance(given, str):
        return True, [(name, given)]
    found = plain(name, given)
    if is_single_prompt(name, found):
        return True, [(name, found)]
    return False, [(f"{name}[{i}]", prompt) for i, prompt in enumerate(found)]


def read_prompt(name: str, given: Any, what: str) -> Any:
    """One prompt. Raises ConfigError, which begins with `what`, for a list of them, and what `read_prompts` raises."""
    single, ((_, prompt), *_) = read_prompts(name, given)
    if not single:
        raise ConfigError(f"{what} one prompt (text or token ids), not a list of prompts")
    return prompt


def is_single_prompt(name: str, prompt: Any) -> bool:
    """Whether `prompt` is one prompt (text or token ids) rather than a list of them. Raises ConfigError if neither."""
    if isinstance(prompt, str):
        return True
    if (
        isinstance(prompt, bytes | bytearray | dict)
        or not hasattr(prompt, "__len__")
        or not hasattr(prompt, "__getitem__")
    ):
        if name.endswith("]"):  # one of several
            _check_no_null(name, prompt)
        raise ConfigError(f"{name} must be text, a list of token ids, or a list of these, not {type(prompt).__name__}")
    if not len(prompt):
        raise ConfigError(f"{name} is empty: give text, at least one token, or a list of at least one of these")
    return not isinstance(prompt[0], str) and not hasattr(prompt[0], "__len__")


def check_callback(on_token: Any) -> None:
    """Raises ConfigError unless `on_token` can be called."""
    if not callable(on_token):
        raise ConfigError(f"on_token must be callable, not {type(on_token).__name__}")


def check_length(
    tokenizer: Tokenizer, name: str, text: str, context_size: int, *, parse_special: bool = False,
    continuation: bool = False,
) -> None:  # fmt: skip
    """Raises ContextOverflowError for a text that has far more tokens than the context: before it is tokenised.

    What has not many more is tokenised, and counted then.
    """
    if len(text) <= CHARACTERS * context_size:
        return
    least = tokenizer.least_tokens(text, context_size, parse_special=parse_special, continuation=continuation)
    if least > context_size:
        raise ContextOverflowError(
            f"{name} has at least {least} tokens and context_size is {context_size}: shorten it, or load with a larger "
            "context_size",
            least,
        )


def infill_ids(
    tokenizer: Tokenizer, prefix: str, suffix: str, suffix_first: bool = False, context_size: int | None = None
) -> list[int]:
    """Token ids of the prompt for the text between `prefix` and `suffix`, with BOS where the model wants one.

    prefix, suffix: the texts around the gap, which may be empty; what they hold is never read as control tokens.
    suffix_first: the suffix comes first in the prompt, for models that were trained so (llama.cpp: spm_infill).

    The order is that of llama.cpp: prefix, suffix, middle, or with `suffix_first` suffix, prefix, middle. The suffix
    gets no space before it, as in CodeLlama's own code. Raises UnsupportedModelError, which names the tokens
    that the model's file lacks, ConfigError, TokenizerError, and with a context_size ContextOverflowError for far more
    tokens.
    """
    first = check_flag("suffix_first", suffix_first)
    for name, text in (("prefix", prefix), ("suffix", suffix)):
        if not isinstance(text, str):
            raise ConfigError(f"{name} must be a str, not {type(text).__name__}")
    before, after, middle = ([mark] for mark in fim_marks(tokenizer))
    if context_size is not None:
        check_length(tokenizer, "prefix", prefix, context_size)
        check_length(tokenizer, "suffix", suffix, context_size, continuation=True)
    before += tokenizer.encode(prefix, add_special=False)
    after += tokenizer.encode(suffix, add_special=False, continuation=True)
    return opening(tokenizer) + (after + before if first else before + after) + middle


def fim_marks(tokenizer: Tokenizer) -> tuple[int, int, int]:
    """Tokens before the text before a gap, the text after it, and the text in it.

    Raises UnsupportedModelError, which names those that the model's file lacks.
    """
    marks = {"fim_pre": tokenizer.fim_pre_id, "fim_suf": tokenizer.fim_suf_id, "fim_mid": tokenizer.fim_mid_id}
    if missing := [name for name, mark in marks.items() if mark is None]:
        keys = ", ".join(f"tokenizer.ggml.{name}_token_id" for name in missing)
        raise UnsupportedModelError(
            f"the model's file names no fill-in-the-middle tokens {', '.join(missing)}: use a model that was trained "
            f"for it, or if it has them under other names, give their ids with overrides= ({keys})"
        )
    before, after, middle = (mark for mark in marks.values() if mark is not None)
    return before, after, middle


def opening(tokenizer: Tokenizer) -> list[int]:
    """The token that begins a text, where the model wants one."""
    return [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []


def check_truncate(value: Any) -> Side | None:
    """The side at which texts are cut; None for False and None. Raises ConfigError for anything else."""
    if value is None or value is False:
        return None
    if value not in ("end", "start") or not isinstance(value, str):
        raise ConfigError(f'truncate must be "end", "start" or False, not {value!r:.60}')
    return "end" if value == "end" else "start"


def cut_ids(ids: list[int], size: int, side: Side, before: int = 0, after: int = 0) -> list[int]:
    """Token ids without those for which there is no room: the first `before` and the last `after` stay in any case.

    Raises ContextOverflowError if there is no room for more than these.
    """
    over, end = len(ids) - size, len(ids) - after
    if over <= 0:
        return ids
    if over >= end - before:
        text = f"{before + after} tokens that begin and end a text leave no room for it in {size}"
        raise ContextOverflowError(text, before + after)
    return ids[: end - over] + ids[end:] if side == "end" else ids[:before] + ids[before + over :]


def cut_text(tokenizer: Tokenizer, text: str, size: int, side: Side) -> tuple[list[int], bool]:
    """Token ids of a text, `size` of them at most, with the special tokens that begin and end it, and whether any are
    left out.

    Of a long text that loses its end, a part is tokenised that is long enough. One that loses its beginning is
    tokenised whole, since digits are grouped from there. Raises TokenizerError, ContextOverflowError.
    """
    n = CHARACTERS * size if side == "end" else len(text)
    while True:
        ids = tokenizer.encode(text[:n])
        if n >= len(text) or len(ids) >= size + MARGIN:
            break
        n *= 2
    return cut_ids(ids, size, side, *tokenizer.n_special), len(ids) > size
