"""Whether two models mean the same by their tokens."""

from oxillama.errors import ConfigError
from oxillama.tokenizer import Tokenizer

__all__ = ["check_same_vocabulary", "first_difference"]


def first_difference(one: Tokenizer, other: Tokenizer) -> int | None:
    """The first token that stands for other bytes, is special in one alone, or is missing in one; None if none is."""
    if one is other:
        return None
    n = min(one.n_vocab, other.n_vocab)
    for token in range(n):
        if _content(one, token) != _content(other, token):
            return token
    return None if one.n_vocab == other.n_vocab else n


def check_same_vocabulary(draft: Tokenizer, target: Tokenizer) -> None:
    """Raises ConfigError, which names the first token that differs, unless ids of a draft are those of the model."""
    token = first_difference(draft, target)
    if token is not None:
        raise ConfigError(
            f"the draft's vocabulary is not the model's: token {token} is {_shown(draft, token)} for the draft and "
            f"{_shown(target, token)} for the model; give a draft with the same tokenizer"
        )


def _content(tokenizer: Tokenizer, token: int) -> tuple[bytes, bool]:
    return tokenizer.token_bytes(token), tokenizer.is_special(token)


def _shown(tokenizer: Tokenizer, token: int) -> str:
    if token >= tokenizer.n_vocab:
        return f"beyond the last of {tokenizer.n_vocab}"
    raw, special = _content(tokenizer, token)
    return f"{'the special token ' if special else ''}{raw!r}"
