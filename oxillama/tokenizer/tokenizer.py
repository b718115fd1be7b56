"""Text to tokens and back, as the model's GGUF file says."""

import codecs
import os
import re
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from blake3 import blake3

from oxillama._util.lazy import lazy
from oxillama._util.pickling import OpenedOnce, frozen
from oxillama.errors import ChatTemplateError, PickleError, TokenizerError
from oxillama.tokenizer._texts import TokenTexts
from oxillama.tokenizer.bpe import MERGES, Encode, byte_level_encoder, utf8_encoder
from oxillama.tokenizer.byte_pieces import byte_piece_encoder
from oxillama.tokenizer.control_texts import ControlTexts
from oxillama.tokenizer.kept import KeptPieces
from oxillama.tokenizer.length import Measure, least_tokens, measure_of
from oxillama.tokenizer.normalization import has_rules, normalizer_of
from oxillama.tokenizer.special import Partition
from oxillama.tokenizer.stream import TokenStream
from oxillama.tokenizer.token_bytes import token_bytes_of
from oxillama.tokenizer.token_types import CONTROL, UNKNOWN, USER_DEFINED
from oxillama.tokenizer.vocab import TokenIds, Vocab, read_vocab
from oxillama.tokenizer.word_models import unigram_encoder, word_piece_encoder

if TYPE_CHECKING:
    from oxillama.chat.template import ChatTemplate
    from oxillama.gguf import GGUFFile, Metadata

__all__ = ["Tokenizer"]

_TEMPLATE = "tokenizer.chat_template"
# Tokens and bytes that decoding puts together at a time: other threads run between them.
JOINED, DECODED = 1 << 14, 1 << 20


class Tokenizer:
    """A model's tokenizer; build one with :meth:`from_gguf`. Safe to use from several threads.

    Its pickle holds the file's path; another process reads the vocabulary from there, once. A copy is the same object.

    Attributes:
        n_vocab: number of tokens; ids are 0 .. n_vocab - 1.
        bos_id, eos_id, eot_id, eom_id, unk_id, sep_id, pad_id, mask_id, cls_id: special ids, ``None`` where there
            is none.
        fim_pre_id, fim_suf_id, fim_mid_id: those of fill-in-the-middle, which stand before the text before the gap, the
            text after it, and the text in it; ``None`` where there is none.
        fim_rep_id, fim_sep_id, fim_pad_id: those before a repository's name, before the name of a file of it, and of
            padding; ``None`` where there is none.
        eog_ids: tokens that end generation.
        add_bos, add_eos, add_sep: what ``add_special=True`` adds.
        separators: how many separators stand between the two texts of a pair that is ranked.
        add_space_prefix: whether a space is put before text (sentencepiece vocabularies).
        model, pre: ``tokenizer.ggml.model`` and the pre-tokenizer in use.
        chat_templates: every chat template of the file by name; the unnamed one is ``"default"``.
    """

    def __init__(self, vocab: Vocab, encode_plain: Encode, chat_templates: Mapping[str, str] | None = None) -> None:
        special = vocab.special
        self._vocab = vocab
        self._encode_plain = encode_plain
        self._raw_bytes = token_bytes_of(vocab)
        self.n_vocab = len(vocab.tokens)
        self.model = vocab.model
        self.pre = vocab.pre
        self.bos_id, self.eos_id, self.eot_id, self.eom_id = special.bos, special.eos, special.eot, special.eom
        self.unk_id, self.sep_id, self.pad_id = special.unk, special.sep, special.pad
        self.mask_id, self.cls_id = special.mask, special.cls
        self.fim_pre_id, self.fim_suf_id, self.fim_mid_id = special.fim_pre, special.fim_suf, special.fim_mid
        self.fim_rep_id, self.fim_sep_id, self.fim_pad_id = special.fim_rep, special.fim_sep, special.fim_pad
        self.eog_ids = vocab.eog_ids
        self.add_bos, self.add_eos, self.add_sep = vocab.add_bos, vocab.add_eos, vocab.add_sep
        self.separators = vocab.separators
        self.add_space_prefix = vocab.add_space_prefix and vocab.model in ("llama", "t5")
        self.chat_templates = dict(chat_templates or {})
        self._origin: tuple[str, dict[str, object]] | None = None
        self._normalizer = normalizer_of(vocab) if vocab.model == "llama" and has_rules(vocab) else None
        self._kept = KeptPieces(vocab.model == "gpt2" and vocab.cut.byte_level and vocab.cut.cuts_words)
        self._pieces: dict[int, str | bytes] = {}  # of ids in streams without control tokens, as they come

    def __reduce__(self) -> tuple[Any, ...]:
        if self._origin is None:
            raise PickleError(
                "this Tokenizer is of no file, or of bytes, and its pickle holds no vocabulary: make it with "
                "Tokenizer.from_gguf(path), or make it in each process"
            )
        path, overrides = self._origin
        _TOKENIZERS.register((path, frozen(overrides), self._digest), self)
        return _reopened, (path, overrides, self._digest)

    def __copy__(self) -> "Tokenizer":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Tokenizer":
        return self

    @lazy
    def _digest(self) -> str:
        """Digest of the vocabulary and the templates."""
        parts: list[object] = [sorted(self.chat_templates.items())]
        for field in fields(self._vocab):
            value = getattr(self._vocab, field.name)
            if isinstance(value, TokenTexts):
                value = blake3(value.starts.tobytes() + value.data.tobytes()).digest()
            elif isinstance(value, np.ndarray):
                value = value.tobytes()
            elif isinstance(value, frozenset):
                value = sorted(value)
            if not isinstance(value, TokenIds):  # they follow from the texts
                parts.append((field.name, value))
        return blake3(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()

    @classmethod
    def from_gguf(
        cls, source: "str | os.PathLike[str] | bytes | GGUFFile", *, overrides: Mapping[str, object] | None = None
    ) -> "Tokenizer":
        """Build the tokenizer that a GGUF file describes.

        Args:
            source: a path, a file's bytes, or an open file (which stays open).
            overrides: metadata values to use instead of the file's, by key; not with an open file, which has had
                its own.

        Raises:
            LoadError: the file can't be read, or its kind of tokenizer is not supported.
            MissingKeyError: metadata lacks a key, or holds another type.
            TokenizerError: the vocabulary is damaged.
        """
        from oxillama import gguf

        if isinstance(source, gguf.GGUFFile):
            if overrides:
                raise TokenizerError("overrides= works with a path; for an open file give them to gguf.open()")
            return cls._from_file(source)
        with gguf.open(source, overrides=overrides) as file:
            return cls._from_file(file)

    @classmethod
    def _from_file(cls, file: "GGUFFile") -> "Tokenizer":
        vocab = read_vocab(file)
        made = cls(vocab, _encoder(vocab, file.metadata), _chat_templates(file.metadata))
        if file.path is not None:
            made._origin = os.path.abspath(file.path), dict(file.overrides)
        return made

    # ---- text -> tokens

    def encode(
        self, text: str, add_special: bool = True, parse_special: bool = False, *, continuation: bool = False,
        owner: Hashable = None,
    ) -> list[int]:  # fmt: skip
        """Token ids of ``text``.

        Args:
            add_special: add BOS, EOS or separator tokens as the model's metadata says.
            parse_special: read the text of control tokens (``<|im_end|>``) as those tokens. Leave it off for text
                that users wrote. User-defined tokens are always recognised, as they are ordinary vocabulary.
            continuation: ``text`` continues another one: the space that ``add_space_prefix`` puts before text is left
                out.
            owner: the ids of long pieces between control tokens are kept for later texts of the same owner, which
                differ in nothing but time; None keeps none.

        Raises:
            TokenizerError: ``text`` is not a str, holds a lone surrogate, or can't be spelt in the vocabulary.
        """
        if not isinstance(text, str):
            raise TokenizerError(f"text must be a str, not {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TokenizerError(
                f"text holds the lone surrogate {text[error.start]!r} at position {error.start}: it has no UTF-8 form"
            ) from None
        out: list[int] = []
        if add_special and self.add_bos and self.bos_id is not None:
            out.append(self.bos_id)
        after_special = not continuation
        partition = self._partition_all if parse_special else self._partition_user
        for piece in self._cut(partition, text) if partition.texts or not text else (text,):
            if isinstance(piece, int):
                out.append(piece)
                after_special = True
            else:
                plain = self._spaced(piece, after_special) if self.model == "llama" else piece
                encode = self._encode_plain
                out += encode(plain) if owner is None else self._kept.encode(owner, plain, encode)
                after_special = False
        if add_special:
            for closes, end in ((self.add_eos, self.eos_id), (self.add_sep, self.sep_id)):
                if closes and end is not None:
                    out.append(end)
        return out

    @property
    def n_special(self) -> tuple[int, int]:
        """Numbers of the special tokens that `encode` puts before a text and behind it."""
        ends = ((self.add_eos, self.eos_id), (self.add_sep, self.sep_id))
        n_behind = sum(closes and end is not None for closes, end in ends)
        return int(self.add_bos and self.bos_id is not None), n_behind

    def _spaced(self, piece: str, begins: bool) -> str:
        """Plain text for a vocabulary of scores: normalised, and if it begins a text, with the space of that."""
        begins = begins and self.add_space_prefix
        follows = self._vocab.marks_follow
        if self._normalizer is not None:
            return self._normalizer.text(piece, before=begins and not follows, after=begins and follows)
        if not begins:
            return piece
        return piece + " " if follows else " " + piece

    def _cut(self, partition: Partition, text: str) -> Iterator[str | int]:
        """A text cut at special tokens, of which sentencepiece's symbols are plain text."""
        symbols = self._vocab.symbols
        if not symbols:
            yield from partition(text)
            return
        for special, pieces in groupby(partition(text), lambda piece: isinstance(piece, int) and piece not in symbols):
            if special:
                yield from pieces
            else:
                yield "".join(self._vocab.tokens[piece] if isinstance(piece, int) else piece for piece in pieces)

    def forget_texts(self) -> None:
        """Forgets the pieces that are kept for all owners of :meth:`encode`."""
        self._kept.clear()

    def encode_marked(self, text: str, mark: str, owner: Hashable = None) -> list[int]:
        """Token ids of a text with control tokens. Raises what :meth:`encode` raises.

        mark: a character that is no part of the text; a control token's text with marks in it is text. owner: see
        :meth:`encode`.
        """
        out: list[int] = []
        for piece in self._cut(self._partition_all, text):
            if isinstance(piece, int):
                out.append(piece)
            else:
                out += self.encode(piece.replace(mark, ""), add_special=False, owner=owner)
        return out

    def encode_template(self, template: str, fields: Mapping[str, str]) -> list[int]:
        """Token ids of a text with ``fields`` filled in. Raises what :meth:`encode` raises.

        The text of control tokens is read as those tokens in the template alone, whatever the fields hold.
        """
        out: list[int] = []
        for piece in self.filled(template, fields):
            out += [piece] if isinstance(piece, int) else self.encode(piece, add_special=False)
        return out

    def filled(self, template: str, fields: Mapping[str, str]) -> Iterator[int | str]:
        """A template's control tokens, as ids, and the texts between them with ``fields`` filled in."""
        places = re.compile("|".join(map(re.escape, fields)))
        for piece in self._cut(self._partition_all, template):
            yield piece if isinstance(piece, int) else places.sub(lambda place: fields[place[0]], piece)

    def least_tokens(self, text: str, enough: int, *, parse_special: bool = False, continuation: bool = False) -> int:
        """A number of tokens that ``text`` has at least, found without tokenising much more than ``enough`` of them.

        It is that of ``encode(text, add_special=False)`` with these options, or a lower one, and near it for texts that
        consist of words; above ``enough``, it is not made any nearer. Memory doesn't depend on the length of the text.

        Raises TokenizerError: ``text`` is not a str, or what was looked at of it can't be spelt in the vocabulary.
        """
        if not isinstance(text, str):
            raise TokenizerError(f"text must be a str, not {type(text).__name__}")

        def count(piece: str, first: bool) -> int:
            return len(self.encode(piece, False, parse_special, continuation=continuation or not first))

        partition = self._partition_all if parse_special else self._partition_user
        return least_tokens(text, enough, self._measure, count, partition.texts, partition.strips)

    @lazy
    def _measure(self) -> Measure:
        return measure_of(self._vocab)

    @lazy
    def _partition_user(self) -> Partition:
        # No token swallows whitespace here: plain text must survive encoding unchanged.
        return Partition(self._specials((USER_DEFINED,)), frozenset(), frozenset())

    @lazy
    def _partition_all(self) -> Partition:
        specials = self._specials((USER_DEFINED, CONTROL, UNKNOWN))
        return Partition(specials, self._vocab.strips_left, self._vocab.strips_right)

    def _specials(self, kinds: tuple[int, ...]) -> dict[str, int]:
        """Ids of tokens of some kinds by their texts; of user-defined ones alone, those that cut the text."""
        tokens, inside = self._vocab.tokens, self._vocab.symbols if kinds == (USER_DEFINED,) else ()
        return {tokens[i]: i for i in self._vocab.of_kinds(*kinds) if tokens[i] and i not in inside}

    # ---- tokens -> text

    def decode(self, ids: Iterable[int], *, skip_special: bool = False, continuation: bool = False) -> str:
        """Text of ``ids``: the inverse of :meth:`encode`. Bytes that are not UTF-8 become U+FFFD.

        Args:
            skip_special: leave out control tokens.
            continuation: ``ids`` continue a text, so that a leading space is part of it. Otherwise the space that
                encoding put before text (``add_space_prefix``) is taken away again.

        Raises:
            TokenizerError: an id is not an int of the vocabulary.
        """
        data = self.decode_bytes(ids, skip_special=skip_special, continuation=continuation)
        if len(data) <= DECODED:
            return data.decode("utf-8", "replace")
        read = codecs.getincrementaldecoder("utf-8")("replace").decode
        pieces = [read(data[i : i + DECODED]) for i in range(0, len(data), DECODED)]
        return "".join([*pieces, read(b"", True)])

    def decode_bytes(self, ids: Iterable[int], *, skip_special: bool = False, continuation: bool = False) -> bytes:
        """The bytes of :meth:`decode`."""
        if isinstance(ids, (str, bytes, bytearray)) or not isinstance(ids, Iterable):
            raise TokenizerError(f"ids must be a sequence of token ids, not {type(ids).__name__}")
        types = self._vocab.types
        strips = at_start = not continuation and self._strips_spaces
        out: list[bytes] = []
        joined: list[bytes] = []
        for position, token in enumerate(ids):
            if len(out) == JOINED:
                joined.append(b"".join(out))
                out.clear()
            token = self._check(token, position)
            raw = b"" if skip_special and types[token] == CONTROL else self._raw_bytes(token)
            if strips:
                begins = self._begins(token, at_start)
                if begins is None and at_start:
                    raw = raw.removeprefix(b" ")
                at_start = bool(begins)
            out.append(raw)
        return b"".join([*joined, *out])

    @property
    def _strips_spaces(self) -> bool:
        """Whether the first space of a text is one that encoding put there."""
        return self.model == "bert" or (self.add_space_prefix and not self._vocab.marks_follow)

    def _begins(self, token: int, at_start: bool) -> bool | None:
        """Tells of a special token whether text begins behind it, of which encoding put a space before; None of
        others."""
        kind = self._vocab.types[token]
        if kind not in (CONTROL, UNKNOWN, USER_DEFINED) or token in self._vocab.symbols:
            return None
        return self.model != "bert" or (at_start and kind == CONTROL)

    def token_bytes(self, token: int) -> bytes:
        """Bytes that one token stands for; special tokens stand for their text. Raises TokenizerError."""
        return self._raw_bytes(self._check(token, None))

    def _check(self, token: object, position: int | None) -> int:
        # numpy integers are welcome, bools and floats are mistakes.
        if type(token) is not int:
            index = getattr(token, "__index__", None)
            if index is None or isinstance(token, bool) or type(token).__name__ == "bool":
                raise TokenizerError(f"{_place(position)} is {token!r}: token ids are integers")
            token = int(index())
        if not 0 <= token < self.n_vocab:
            raise TokenizerError(f"{_place(position)} is {token}, outside the vocabulary 0..{self.n_vocab - 1}")
        return token

    def stream(
        self, *, skip_special: bool = False, continuation: bool = True, shown: Container[int] = ()
    ) -> TokenStream:
        """A :class:`TokenStream` over this vocabulary. By default its tokens continue a text (see :meth:`decode`).

        ``skip_special`` leaves out control tokens but those in ``shown``.
        """
        piece: Callable[[int], bytes] = self.token_bytes
        known: dict[int, str | bytes] | None = None
        if skip_special:
            types, known = self._vocab.types, None if shown else self._pieces

            def piece(token: int) -> bytes:
                hidden = types[self._check(token, None)] == CONTROL and token not in shown
                return b"" if hidden else self._raw_bytes(token)

        if continuation or not self._strips_spaces:
            return TokenStream(piece, known=known)
        return TokenStream(piece, strip_first_space=True, begins=self._begins, known=known)

    # ---- about tokens

    def token_to_id(self, text: str) -> int | None:
        """Id of the token with exactly this text, as the vocabulary spells it (``▁the``, ``Ġthe``), or ``None``."""
        return self._vocab.ids.get(text)

    def id_to_token(self, token: int) -> str:
        """The vocabulary's own spelling of a token. Raises TokenizerError."""
        return self._vocab.tokens[self._check(token, None)]

    @lazy
    def control_texts(self) -> ControlTexts:
        """Texts of the control tokens by their ids."""
        return ControlTexts((token, self._vocab.tokens[token]) for token in self._vocab.of_kinds(CONTROL))

    def is_eog(self, token: int) -> bool:
        """Whether generation ends after this token."""
        return token in self.eog_ids

    def is_special(self, token: int) -> bool:
        """Whether this is a control or unknown token, which is no text. Raises TokenizerError."""
        return self._vocab.types[self._check(token, None)] in (CONTROL, UNKNOWN)

    def token_type(self, token: int) -> int:
        """1: normal, 2: unknown, 3: control, 4: user-defined, 5: unused, 6: a byte. Raises TokenizerError."""
        return self._vocab.types[self._check(token, None)]

    def token_score(self, token: int) -> float:
        """The score of a token; 0 in vocabularies that have none. Raises TokenizerError."""
        token, scores = self._check(token, None), self._vocab.scores
        return 0.0 if scores is None else float(scores[token])

    def check_ids(self, ids: Iterable[int]) -> list[int]:
        """``ids`` as a list of int. Raises TokenizerError naming position, value and range of a bad one."""
        if isinstance(ids, (str, bytes, bytearray)) or not isinstance(ids, Iterable):
            raise TokenizerError(f"ids must be a sequence of token ids, not {type(ids).__name__}")
        return [self._check(token, position) for position, token in enumerate(ids)]

    # ---- chat

    @property
    def chat_template(self) -> str | None:
        """Source of the file's default chat template, if it has one."""
        return self.chat_templates.get("default")

    def template(self, name: str = "default") -> "ChatTemplate":
        """The file's chat template ``name``, compiled. Raises ChatTemplateError if there is none or it is broken."""
        from oxillama.chat.template import ChatTemplate

        source = self.chat_templates.get(name)
        if source is None:
            others = f"; it has {', '.join(sorted(self.chat_templates))}" if self.chat_templates else ""
            raise ChatTemplateError(
                f"the model has no chat template {name!r}{others}. Pass one (chat_template=...), or use generate() "
                "with a prompt of your own"
            )
        return ChatTemplate(source, bos_token=self._text(self.bos_id), eos_token=self._text(self.eos_id))

    def _text(self, token: int | None) -> str:
        return "" if token is None else self._vocab.tokens[token]

    def __repr__(self) -> str:
        return f"<Tokenizer {self.model}/{self.pre}, {self.n_vocab} tokens>"


_TOKENIZERS: OpenedOnce[Tokenizer] = OpenedOnce()


def _reopened(path: str, overrides: dict[str, object], digest: str) -> Tokenizer:
    """Reopens a pickled tokenizer, once in a process."""

    def read() -> Tokenizer:
        found = Tokenizer.from_gguf(path, overrides=overrides)
        if found._digest != digest:
            raise PickleError(f"{path}: this is not the tokenizer that was pickled: give every process the same file")
        return found

    return _TOKENIZERS.get((path, frozen(overrides), digest), read)


def _place(position: int | None) -> str:
    return "token id" if position is None else f"token id at position {position}"


def _encoder(vocab: Vocab, meta: "Metadata") -> Encode:
    if vocab.model == "bert":
        return word_piece_encoder(vocab)
    if vocab.model == "t5":
        return unigram_encoder(vocab)
    if vocab.model == "rwkv":
        return byte_piece_encoder(vocab)
    if vocab.model == "llama":
        return utf8_encoder(vocab, None)
    merges = meta.get_array(MERGES, str)
    return byte_level_encoder(vocab, merges) if vocab.cut.byte_level else utf8_encoder(vocab, merges)


def _chat_templates(meta: "Metadata") -> dict[str, str]:
    found: dict[str, str] = {}
    if _TEMPLATE in meta:
        found["default"] = meta.get_str(_TEMPLATE)
    for key in meta:
        if key.startswith(_TEMPLATE + "."):
            found[key.removeprefix(_TEMPLATE + ".")] = meta.get_str(key)
    return found
