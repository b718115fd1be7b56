"""The vocabulary of a GGUF file, read and checked: token texts, types, scores, special ids and flags."""

import logging
import re
from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import MissingKeyError, TokenizerError, UnsupportedModelError
from oxillama.tokenizer._texts import TokenTexts
from oxillama.tokenizer.marks import marks_follow, user_symbols
from oxillama.tokenizer.pre_tokenizers import PreTokenizer, known_pre_tokenizers, pre_tokenizer
from oxillama.tokenizer.special import BERT_TEXTS, FIM_TEXTS, end_of_generation, strip_rules
from oxillama.tokenizer.token_types import BYTE, NORMAL, SpecialIds

if TYPE_CHECKING:
    from oxillama.gguf import GGUFArray, GGUFFile, Metadata

__all__ = ["TokenIds", "Vocab", "read_texts", "read_vocab"]

_P = "tokenizer.ggml."
_MODELS = ("gpt2", "gemma4", "llama", "bert", "t5", "rwkv")
# What the formats mean when the file gives no id (the defaults of sentencepiece's trainers).
_DEFAULT_IDS = {
    "llama": {"bos": 1, "eos": 2, "unk": 0},
    "t5": {"eos": 1, "unk": 2, "pad": 0},
}
# "seperator" is how the format spells it.
_ID_KEYS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "eot": "eot_token_id",
    "eom": "eom_token_id",
    "unk": "unknown_token_id",
    "sep": "seperator_token_id",
    "pad": "padding_token_id",
    "mask": "mask_token_id",
    "cls": "cls_token_id",
    "fim_pre": "fim_pre_token_id",
    "fim_suf": "fim_suf_token_id",
    "fim_mid": "fim_mid_token_id",
    "fim_pad": "fim_pad_token_id",
    "fim_rep": "fim_rep_token_id",
    "fim_sep": "fim_sep_token_id",
}

# What files had before those above.
_OLD_KEYS = {"fim_pre": "prefix_token_id", "fim_suf": "suffix_token_id", "fim_mid": "middle_token_id"}

_BYTE_TEXT = re.compile(r"<0x[0-9A-Fa-f]{2}>")

_log = logging.getLogger("oxillama")


class TokenIds(Mapping[str, int]):
    """The ids of a vocabulary's tokens by their texts, of which empty ones have none."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts

    def __getitem__(self, text: str) -> int:
        found = self._texts.id_of(text)
        if found < 0:
            raise KeyError(text)
        return found

    def __iter__(self) -> Iterator[str]:
        return (text for text in self._texts if text)

    def __len__(self) -> int:
        return int(np.count_nonzero(np.diff(self._texts.starts)))


@dataclass(frozen=True, slots=True)
class Vocab:
    """A checked vocabulary. ``tokens``, ``types`` (a byte each) and ``scores`` (if any) have ``n_vocab`` entries.

    ``symbols``: the user-defined tokens that sentencepiece trained with. ``marks_follow``: marks of spaces stand behind
    words.
    """

    model: str
    pre: str
    cut: PreTokenizer
    tokens: TokenTexts
    ids: TokenIds
    types: bytes
    scores: NDArray[np.float64] | None
    special: SpecialIds
    add_bos: bool
    add_eos: bool
    add_sep: bool
    separators: int
    add_space_prefix: bool
    remove_extra_whitespaces: bool
    nfc: bool
    lowercase: bool
    strip_accents: bool
    charsmap: bytes
    eog_ids: frozenset[int] = frozenset()
    strips_left: frozenset[int] = frozenset()
    strips_right: frozenset[int] = frozenset()
    symbols: frozenset[int] = frozenset()
    marks_follow: bool = False
    byte_ids: dict[int, int] = field(default_factory=dict)

    @property
    def spaces_escaped(self) -> bool:
        """Whether token texts spell a space as ``▁``."""
        return self.model != "rwkv" and (self.model in ("llama", "t5", "bert") or not self.cut.byte_level)

    def of_kinds(self, *kinds: int) -> list[int]:
        """Ids of the tokens of some types."""
        return ids_of_kinds(self.types, *kinds)


def ids_of_kinds(types: bytes | bytearray, *kinds: int) -> list[int]:
    return np.flatnonzero(np.isin(np.frombuffer(types, np.uint8), kinds)).tolist()


def read_vocab(file: "GGUFFile") -> Vocab:
    """Read and check the ``tokenizer.ggml.*`` metadata.

    Raises:
        MissingKeyError: a key is absent or holds another type.
        UnsupportedModelError: the tokenizer's model or pre-tokenizer is unknown.
        TokenizerError: arrays disagree in length, an id is out of range, a token is there twice.
    """
    meta = file.metadata
    model = _model(meta)
    pre, cut = _pre_tokenizer(meta, model)
    tokens = read_texts(meta.get_array(_P + "tokens", str), _P + "tokens")
    if not tokens:
        raise TokenizerError(f"{_P}tokens is empty: the file has no vocabulary")
    if tokens.twice is not None:
        first, second = tokens.twice
        raise TokenizerError(f"{_P}tokens holds {tokens[first]!r} twice, as ids {first} and {second}")
    ids, types = TokenIds(tokens), _types(meta, len(tokens))
    special = _special_ids(meta, model, ids, len(tokens))
    eog = end_of_generation(ids, types, special)
    left, right = strip_rules(meta, pre, ids, types)
    scores, flags = _scores(meta, model, len(tokens)), _flags(meta, model, cut, special)
    prefix = flags["add_space_prefix"]
    return Vocab(
        model=model,
        pre=pre,
        cut=cut,
        tokens=tokens,
        ids=ids,
        types=bytes(types),
        scores=scores,
        special=special,
        charsmap=_charsmap(meta),
        eog_ids=eog,
        strips_left=left,
        strips_right=right,
        symbols=user_symbols(model, tokens, types, scores, prefix) - left - right,
        marks_follow=marks_follow(model, tokens, types, prefix),
        byte_ids=_byte_ids(tokens, types),
        separators=_separators(meta, model, cut),
        **flags,
    )


def _flags(meta: "Metadata", model: str, cut: PreTokenizer, special: SpecialIds) -> dict[str, bool]:
    lowercase = meta.get_bool(_P + "normalizer.lowercase", True)
    return {
        **_add_flags(meta, model, cut, special),
        "add_space_prefix": meta.get_bool(_P + "add_space_prefix", model in ("llama", "t5")),
        "remove_extra_whitespaces": meta.get_bool(_P + "remove_extra_whitespaces", False),
        "nfc": meta.get_bool(_P + "normalizer.nfc", False),
        "lowercase": lowercase,
        "strip_accents": meta.get_bool(_P + "normalizer.strip_accents", lowercase),
    }


def _model(meta: "Metadata") -> str:
    model = meta.get_str(_P + "model")
    if model in _MODELS:
        return model
    if model in ("no_vocab", "none"):
        raise UnsupportedModelError(
            f"{_P}model is {model!r}: the file has no tokenizer; give a file that has one (tokenizer_path=...)"
        )
    raise UnsupportedModelError(f"{_P}model is {model!r}, which is not supported; supported: {', '.join(_MODELS)}")


def _pre_tokenizer(meta: "Metadata", model: str) -> tuple[str, PreTokenizer]:
    if model == "gemma4":
        name = "gemma4"
    elif model == "gpt2":
        name = meta.get_str(_P + "pre", "")
        if not name:
            _log.warning(
                "%spre is missing: taking 'default'; tokens may differ from the original tokenizer's. "
                "Name the right one with overrides={'%spre': ...}",
                _P,
                _P,
            )
            name = "default"
    else:
        return "default", PreTokenizer((), byte_level=False)
    cut = pre_tokenizer(name)
    if cut is None:
        raise UnsupportedModelError(
            f"{_P}pre is {name!r}, an unknown pre-tokenizer; if you know one that cuts text alike, name it: "
            f'overrides={{"{_P}pre": "llama-bpe"}}. Known: {", ".join(known_pre_tokenizers())}'
        )
    return name, cut


def read_texts(array: "GGUFArray", key: str) -> TokenTexts:
    """The strings of a metadata array. Raises TokenizerError naming the entry that is not UTF-8."""
    payload, offsets = array.string_places()
    try:
        texts = TokenTexts(payload, offsets)
    except OverflowError as error:
        raise TokenizerError(f"{key} is too large: {error}") from None
    array.check()
    if not _is_utf8(texts):
        for i, entry in enumerate(array.bytes_list()):
            try:
                entry.decode()
            except UnicodeDecodeError as error:
                raise TokenizerError(f"{key}[{i}] is not valid UTF-8: {entry[:32]!r} ({error.reason})") from None
    return texts


def _is_utf8(texts: TokenTexts) -> bool:
    """Whether each text is, which is so if all of them in a row are and none begins within a character."""
    try:
        str(texts.data.data, "utf-8")
    except UnicodeDecodeError:
        return False
    firsts = texts.data[texts.starts[texts.starts < len(texts.data)]]
    return not bool(np.any(firsts & 0xC0 == 0x80))


def _same_length(key: str, values: Sized, n_vocab: int) -> None:
    if len(values) != n_vocab:
        raise TokenizerError(f"{_P}{key} has {len(values)} entries, but {_P}tokens has {n_vocab}")


def _types(meta: "Metadata", n_vocab: int) -> bytearray:
    if _P + "token_type" not in meta:
        return bytearray([NORMAL]) * n_vocab
    array = meta.get_array(_P + "token_type", int)
    _same_length("token_type", array, n_vocab)
    types = array.numpy()
    unknown = (types < 0) | (types > BYTE)
    if unknown.any():
        i = int(unknown.argmax())
        raise TokenizerError(f"{_P}token_type[{i}] is {types[i]}, not one of 0..6")
    return bytearray(types.astype(np.uint8).tobytes())


def _scores(meta: "Metadata", model: str, n_vocab: int) -> NDArray[np.float64] | None:
    if model not in ("llama", "t5"):
        return None
    array = meta.get_array(_P + "scores", float)
    _same_length("scores", array, n_vocab)
    scores: NDArray[np.float64] = array.numpy().astype(np.float64)
    finite = np.isfinite(scores)
    if not finite.all():
        i = int(finite.argmin())
        raise TokenizerError(f"{_P}scores[{i}] is {scores[i]}, not a finite number")
    return scores


def _special_ids(meta: "Metadata", model: str, ids: Mapping[str, int], n_vocab: int) -> SpecialIds:
    found: dict[str, int | None] = {}
    defaults = _DEFAULT_IDS.get(model, {})
    for name, key in _ID_KEYS.items():
        if name in _OLD_KEYS and _P + key not in meta:
            key = _OLD_KEYS[name]
        if _P + key in meta:
            value = meta.get_int(_P + key)
            if not 0 <= value < n_vocab:
                raise TokenizerError(f"{_P}{key} is {value}, outside the vocabulary 0..{n_vocab - 1}")
            found[name] = value
        elif model == "bert":
            found[name] = ids.get(BERT_TEXTS.get(name, ""))
        elif name in FIM_TEXTS:
            found[name] = next((ids[text] for text in FIM_TEXTS[name] if text in ids), None)
        else:
            default = defaults.get(name, n_vocab)
            found[name] = default if default < n_vocab else None
    if model == "bert":
        found["bos"] = found["bos"] if found["bos"] is not None else found["cls"]
    return SpecialIds(**found)


def _add_flags(meta: "Metadata", model: str, cut: PreTokenizer, special: SpecialIds) -> dict[str, bool]:
    """Reads what is added to a text, by the file's keys, as llama.cpp reads them.

    WordPiece begins with CLS and ends with SEP whatever the keys say: there they are about the texts of a pair.
    Nothing is added to the byte strings of RWKV, and a vocabulary of Gemma 4 always begins with BOS.
    """
    bos = _added(
        meta, "bos", special.bos, model in ("llama", "bert") or cut.add_bos, strict=model not in ("t5", "rwkv")
    )
    eos = _added(meta, "eos", special.eos, model == "t5", strict=model not in ("bert", "rwkv"))
    sep = _added(meta, "sep", special.sep, model == "bert", strict=model != "rwkv")
    if model == "bert":
        bos, eos, sep = special.bos is not None, False, special.sep is not None
    elif model == "rwkv":
        bos = eos = sep = False
    elif cut.always_bos:
        bos = special.bos is not None
    return {"add_bos": bos, "add_eos": eos, "add_sep": sep and model == "bert"}


def _added(meta: "Metadata", name: str, token: int | None, default: bool, *, strict: bool) -> bool:
    """Whether a special token is to be added. strict: the file may not ask for one that it hasn't.

    T5 has no BOS, and converters write that it is added where neither it nor a first token is set.
    """
    key = f"{_P}add_{name}_token"
    wanted = meta.get_bool(key, default)
    if wanted and token is None:
        if strict and key in meta:
            raise TokenizerError(f"{key} is true, but {_P}{_ID_KEYS[name]} is not set")
        return False
    return wanted


def _separators(meta: "Metadata", model: str, cut: PreTokenizer) -> int:
    """Number of separators between the texts of a pair."""
    if model == "bert":
        return 1
    return 1 + meta.get_bool(_P + "add_sep_token", cut.separators == 2)


def _charsmap(meta: "Metadata") -> bytes:
    key = _P + "precompiled_charsmap"
    if key not in meta:
        return b""
    values = meta.get_array(key, int).numpy()
    if values.itemsize != 1:
        raise MissingKeyError(f"{key} is an array of {values.dtype}; an array of bytes is needed")
    return values.tobytes()


def _byte_ids(tokens: TokenTexts, types: bytearray) -> dict[int, int]:
    """byte -> id, from the ``<0xXX>`` tokens."""
    found: dict[int, int] = {}
    for i in ids_of_kinds(types, BYTE):
        if not _BYTE_TEXT.fullmatch(tokens[i]):  # `int` would read "<0x-1>", too
            raise TokenizerError(f"{_P}tokens[{i}] is a byte token but reads {tokens[i]!r}, not <0x00>..<0xFF>")
        found[int(tokens[i][3:5], 16)] = i
    return found
