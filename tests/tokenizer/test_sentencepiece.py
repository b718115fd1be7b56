"""Vocabularies of sentencepiece against its own ids: those recorded, and where it is installed, those of new models."""

import base64
import json
from functools import cache
from typing import Any

import numpy as np
import pytest

from oxillama.errors import TokenizerError
from oxillama.tokenizer import Tokenizer
from oxillama.tokenizer._normalizing import TextNormalizer
from oxillama.tokenizer.charsmap import read_charsmap
from tests.tokenizer.build import P, make
from tests.tokenizer.trained import FILE, KINDS, RECORDED, metadata, texts, train


@cache
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def tokenizer_of(meta: dict[str, Any], **overrides: object) -> Tokenizer:
    meta = dict(meta)
    charsmap = base64.b64decode(meta.pop("charsmap"))
    if charsmap:
        meta[P + "precompiled_charsmap"] = np.frombuffer(charsmap, np.uint8)
    return make(meta | {P + "scores": np.array(meta[P + "scores"], np.float32)}, **overrides)


@cache
def tokenizer(kind: str) -> Tokenizer:
    return tokenizer_of(recorded()[kind]["metadata"])


def tokens(vocab: Tokenizer, text: str, **options: bool) -> list[str]:
    return [vocab.id_to_token(i) for i in vocab.encode(text, add_special=False, **options)]


@pytest.mark.parametrize("kind", RECORDED)
def test_text_gives_the_recorded_ids(kind: str) -> None:
    cases = recorded()[kind]["cases"]
    assert len(cases) > 200
    assert [[text, tokenizer(kind).encode(text, add_special=False)] for text, _ in cases] == cases


@pytest.mark.parametrize("kind", RECORDED)
def test_kept_pieces_and_bounds_are_those_of_the_whole(kind: str) -> None:
    vocab = tokenizer(kind)
    for text in (*texts(60, 5), *(text * 40 for text in texts(160, 6)[100:])):
        ids = vocab.encode(text, add_special=False)
        assert vocab.encode(text, add_special=False, owner="a") == ids
        assert vocab.encode(text, add_special=False, owner="a") == ids
        for enough in (0, 5, 1000):
            assert vocab.least_tokens(text, enough) <= len(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_new_models_give_the_ids_of_sentencepiece(kind: str) -> None:
    library = pytest.importorskip("sentencepiece")
    model = train(kind)
    encode, vocab = library.SentencePieceProcessor(model_proto=model).encode, tokenizer_of(metadata(model))
    for text in texts(700, 11):
        assert vocab.encode(text, add_special=False) == encode(text), ascii(text)


class TestSymbols:
    def test_they_are_text_like_other_pieces(self) -> None:
        """No space stands behind them that isn't in the text."""
        vocab = tokenizer("bpe symbols")
        assert tokens(vocab, "<tool>the") == ["▁", "<tool>", "the"]
        assert tokens(vocab, "of<tool>é") == ["▁of", "<tool>", "é"]
        for text in ("<tool>the", "x<tool> the", " <tool>", "<tool>", "a   b", "é  ▁▁x"):
            ids = vocab.encode(text, add_special=False)
            stream = vocab.stream(continuation=False)
            assert vocab.decode(ids) == text.replace("▁", " ") == "".join(map(stream.push, ids)) + stream.flush()

    def test_added_tokens_cut_the_text(self) -> None:
        """As in the library `tokenizers` and in llama.cpp; converters give them a score of -1000."""
        meta = recorded()["bpe symbols"]["metadata"]
        added = meta[P + "tokens"].index("<tool>")
        scores = [-1000.0 if i == added else score for i, score in enumerate(meta[P + "scores"])]
        vocab = tokenizer_of(meta | {P + "scores": scores})
        assert tokens(vocab, "<tool>the") == ["<tool>", "▁the"]
        assert vocab.decode(vocab.encode("a<tool>the", add_special=False)) == "a<tool>the"

    def test_spaces_in_the_texts_of_added_tokens_are_marks(self) -> None:
        meta = recorded()["bpe symbols, no prefix"]["metadata"]
        marks = meta[P + "tokens"].index("▁▁")
        scores = [-1000.0 if i == marks else score for i, score in enumerate(meta[P + "scores"])]
        texts = ["   " if i == marks else text for i, text in enumerate(meta[P + "tokens"])]
        vocab = tokenizer_of(meta | {P + "scores": scores, P + "tokens": texts})
        assert [vocab.encode(text, add_special=False) for text in ("   ", "▁ ▁")] == [[marks], [marks]]
        assert vocab.decode([marks]) == "   "

    def test_control_tokens_beside_them(self) -> None:
        vocab = tokenizer("bpe symbols")
        assert tokens(vocab, "ab<s>ab<tool>", parse_special=True) == ["▁", "ab", "<s>", "▁", "ab", "<tool>"]
        marked = vocab.encode_marked("ab<s>ab<tool>x", "\ue000")
        assert marked == vocab.encode("ab<s>ab<tool>x", add_special=False, parse_special=True)
        assert vocab.encode_template("<s>ab{x}", {"{x}": "<s>"})[1:3] == vocab.encode("ab", add_special=False)

    def test_unused_tokens_stand_for_no_text(self) -> None:
        meta = recorded()["unigram own rules"]["metadata"]
        unused = meta[P + "tokens"].index("▁the")
        types = [5 if i == unused else kind for i, kind in enumerate(meta[P + "token_type"])]
        scores = [-1e6 if i == unused else score for i, score in enumerate(meta[P + "scores"])]
        vocab = tokenizer_of(meta | {P + "token_type": types, P + "scores": scores})
        assert unused not in vocab.encode("the", add_special=False)
        assert vocab.decode(vocab.encode("the")) == "the</s>"


def test_marks_behind_words_are_seen_in_the_pieces() -> None:
    vocab = tokenizer("unigram marks behind, spaces kept")
    assert tokens(vocab, "of the") == ["of▁", "the▁"]
    ids = vocab.encode("of the", add_special=False)
    assert vocab.decode(ids) == "of the "
    assert vocab.decode(vocab.encode(" of", add_special=False)) == " of "


def test_rules_hold_for_vocabularies_of_merges_too() -> None:
    vocab = tokenizer("bpe own rules")
    assert vocab.encode("ﾊﾟ\u1112\u1161\u11ab①") == vocab.encode("パ한1")
    assert vocab.decode(vocab.encode("ﬁ\u3000e\u0301", add_special=False)) == "fi é"


class TestRules:
    RULES = base64.b64decode(recorded()["unigram own rules"]["metadata"]["charsmap"])

    def normalizer(self, **options: Any) -> TextNormalizer:
        found = read_charsmap(self.RULES)
        return TextNormalizer(found.units, found.replacements, **options)

    def test_the_longest_one_that_fits_goes_first(self) -> None:
        normal = self.normalizer().text
        assert normal("\u1100\u1161\u11a8\u1100\u1161") == "각\u1100\u1161"
        assert normal("u\u0308\u0304 u\u0308") == "ǖ▁u\u0308"
        assert normal("ﾊﾟﾊﾞﾊ") == "パバハ"
        assert normal("\x01ß\u200b") == "ss"
        assert normal("") == ""

    def test_spaces(self) -> None:
        assert self.normalizer().text("\t a ", before=True) == "▁▁▁a▁"
        merges = self.normalizer(merges_spaces=True).text
        assert merges("\t a \u3000\n b  ", before=True) == "▁a▁b"
        assert merges("  ", before=True, after=True) == ""
        assert merges("▁", before=True) == ""
        assert merges(" \x01 a", after=True) == "a▁"

    def test_long_texts(self) -> None:
        text = "ﾊﾟ \u1100\u1161\u11a8x" * 5000
        assert self.normalizer().text(text) == "パ▁각x" * 5000
        assert TextNormalizer().text(" " * 100_000) == "▁" * 100_000

    def test_what_is_known_of_characters(self) -> None:
        found = read_charsmap(self.RULES)
        assert found.keeps("abc fiz")
        assert not found.keeps("a\t")
        assert not found.joins("abc", " ")

    def test_replacements_have_a_bound(self) -> None:
        """A short text must not become a long one."""
        start = 4 + int.from_bytes(self.RULES[:4], "little")
        texts = self.RULES[start:].replace(b"\0", b"a" * 300)
        with pytest.raises(TokenizerError, match=r"precompiled_charsmap is damaged: a replacement has \d+ bytes"):
            read_charsmap(self.RULES[:start] + texts)

    def test_rules_that_end_within_a_character(self) -> None:
        """What is left of it is U+FFFD, byte by byte, as in sentencepiece."""
        # The root's child of 0xC3 is a leaf, whose replacement is "x".
        units = np.full(1024, 0x800000FF, np.uint32)
        units[0], units[0xC3 ^ 256] = 256 << 10, (512 << 10) | 0x100 | 0xC3
        units[0xC3 ^ 256 ^ 512] = 1 << 31
        assert TextNormalizer(units, b"x\0").text("é é") == "x\ufffd▁x\ufffd"

    def test_a_table_that_leads_back_to_itself_takes_time_for_the_text_alone(self) -> None:
        units = np.full(512, 0x800000FF, np.uint32)
        units[0], units[ord("a")] = 0, ord("a") | (ord("a") << 10)  # of which the child of "a" is itself
        assert TextNormalizer(units, b"\0").text("a" * 200_000) == "a" * 200_000
