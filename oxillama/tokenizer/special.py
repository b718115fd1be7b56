"""Special tokens: end of generation, whitespace around them, and their places in a text."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from oxillama.tokenizer.token_types import CONTROL, UNKNOWN, USER_DEFINED, SpecialIds

if TYPE_CHECKING:
    from oxillama.gguf import Metadata

__all__ = ["BERT_TEXTS", "FIM_TEXTS", "Partition", "end_of_generation", "strip_rules"]

BERT_TEXTS = {"cls": "[CLS]", "sep": "[SEP]", "unk": "[UNK]", "pad": "[PAD]", "mask": "[MASK]"}

# Tokens of fill-in-the-middle, which most files name by their texts alone (as llama.cpp knows them): where the text
# before the gap begins, the text after it, and the text in it.
FIM_TEXTS = {
    "fim_pre": (
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<\uff5cfim▁begin\uff5c>", "<PRE>", "▁<PRE>"),
        *("<|code_prefix|>", "<|prefix|>"),
    ),
    "fim_suf": (
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<\uff5cfim▁hole\uff5c>", "<SUF>", "▁<SUF>"),
        *("<|code_suffix|>", "<|suffix|>"),
    ),
    "fim_mid": (
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<\uff5cfim▁end\uff5c>", "<MID>", "▁<MID>"),
        *("<|code_middle|>", "<|middle|>"),
    ),
    # A repository's name, a file's, and padding. What follows them is another text: they end one, too.
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>"),
    "fim_sep": ("<|file_sep|>",),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>"),
}

_SPACES = re.compile(r"\s*")
# Special tokens of which each is searched for in a text, whatever characters that has.
_FEW = 64

# Texts that end a turn or a document wherever they are a token at all: they have no other use. Some
# converters forget to mark them as control tokens, so finding one as an ordinary token makes it special.
_EOG_ALWAYS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<turn|>",
    "<|tool_response>",
    "<\uff5cend▁of▁sentence\uff5c>",  # DeepSeek's, with fullwidth bars
    *(text for name in ("fim_pad", "fim_rep", "fim_sep") for text in FIM_TEXTS[name]),
)
# Texts that also are something else in some vocabulary (``</s>`` is HTML in Gemma's): only as control tokens.
_EOG_IF_CONTROL = (
    *("<EOT>", "_<EOT>", "▁<EOT>", "[EOT]", "[EOS]", "<eos>", "[e~[", "</s>"),
    *("<PAD>", "[PAD]", "<REPO>", "<reponame>"),
)


def end_of_generation(ids: Mapping[str, int], types: bytearray, special: SpecialIds) -> frozenset[int]:
    """Ids after which generation stops: EOS, EOT, EOM, and tokens known by their text.

    Tokens that are special by their text alone get the type CONTROL in ``types``.
    """
    found = {special.eos, special.eot, special.eom, special.fim_pad, special.fim_rep, special.fim_sep} - {None}
    texts = {text: ids[text] for text in _EOG_ALWAYS if text in ids}
    for token in texts.values():
        if types[token] != USER_DEFINED:
            types[token] = CONTROL
    texts.update({text: ids[text] for text in _EOG_IF_CONTROL if text in ids and types[ids[text]] == CONTROL})
    # In the harmony format <|end|> only ends a message; the turn ends with <|return|> or a call.
    harmony = "<|return|>" in texts and "<|call|>" in texts
    solar = "<|flush|>" in texts and ("<|calls|>" in texts or "<|call|>" in texts)
    if harmony or solar:
        texts.pop("<|end|>", None)
    return frozenset(token for token in (*found, *texts.values()) if token is not None)


def strip_rules(
    meta: "Metadata", pre: str, ids: Mapping[str, int], types: bytearray
) -> tuple[frozenset[int], frozenset[int]]:
    """Special tokens that swallow the whitespace to their left, and to their right.

    GGUF has no key for these attributes, so they go by model: ``<mask>`` of the Jina v2 and XLM-R embedders and
    ``[MASK]`` of ModernBERT strip to the left; the special tokens of Phi-3 strip to the right.
    """
    arch = meta.get_str("general.architecture", "")
    name = meta.get_str("general.name", "").lower()
    left: set[int] = set()
    right: set[int] = set()
    if pre in ("jina-v2-de", "jina-v2-es", "jina-v2-code") or arch in ("nomic-bert-moe", "jina-bert-v3"):
        left.update(ids[text] for text in ("<mask>",) if text in ids)
    elif "modern-bert" in name or pre == "modern-bert":
        left.update(ids[text] for text in ("[MASK]",) if text in ids)
    elif "phi-3" in name or "phi3" in name:
        right.update(i for i, kind in enumerate(types) if kind in (CONTROL, USER_DEFINED, UNKNOWN))
        right.update(ids[text] for text in ("</s>",) if text in ids)
        right.difference_update(ids[text] for text in ("<unk>", "<s>", "<|endoftext|>") if text in ids)
    return frozenset(left), frozenset(right)


class Partition:
    """Cuts a text at special tokens: leftmost match first, the longest where several begin.

    Args:
        specials: token text -> id; texts must not be empty.
        strips_left, strips_right: ids that swallow whitespace on that side.

    Attributes:
        texts: those of the special tokens.
    """

    def __init__(self, specials: Mapping[str, int], strips_left: frozenset[int], strips_right: frozenset[int]) -> None:
        # Longest first: in an alternation the first alternative that matches wins.
        self._ids = dict(sorted(specials.items(), key=lambda item: -len(item[0])))
        self._by_first: dict[str, list[str]] = {}
        for token in self._ids:
            self._by_first.setdefault(token[0], []).append(token)
        self.texts: Collection[str] = self._ids.keys()
        self._left = strips_left
        self._right = strips_right

    @property
    def strips(self) -> bool:
        """Whether some of the tokens swallow whitespace."""
        return bool(self._left or self._right)

    def _candidates(self, text: str) -> Iterable[str]:
        """The special tokens' texts, longest first; of many, those alone whose first character a text has."""
        if len(self._ids) <= _FEW:
            return self._ids
        firsts = self._by_first.keys() & set(text)
        return sorted((token for first in firsts for token in self._by_first[first]), key=len, reverse=True)

    def __call__(self, text: str) -> Iterator[str | int]:
        """Yield the pieces of ``text`` in order: plain text as str (never empty), special tokens as their id."""
        # A pattern over thousands of tokens is slow to match; a substring search for each is not, and few occur.
        present = [token for token in self._candidates(text) if token in text]  # other threads run between them
        if not present:
            if text:
                yield text
            return
        start = 0
        for match in re.finditer("|".join(map(re.escape, present)), text):
            if match.start() < start:
                continue  # inside whitespace that a token to the left swallowed
            token = self._ids[match.group()]
            plain = text[start : match.start()]
            if token in self._left:
                plain = plain.rstrip()
            if plain:
                yield plain
            yield token
            start = match.end()
            if token in self._right:
                spaces = _SPACES.match(text, start)
                start = spaces.end() if spaces else start
        if start < len(text):
            yield text[start:]
