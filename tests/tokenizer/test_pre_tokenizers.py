"""How each pre-tokenizer cuts text, against the pieces that llama.cpp cut.

A recorded row is null where llama.cpp only approximates the original pattern (its regex engine does not know all
Unicode categories).
"""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.errors import UnsupportedModelError
from oxillama.tokenizer.bpe import Splitter
from oxillama.tokenizer.kept import BETWEEN_WORDS
from oxillama.tokenizer.pre_tokenizers import known_pre_tokenizers, pre_tokenizer
from tests.tokenizer.build import DATA, byte_level, make

PIECES = json.loads((DATA / "pieces.json").read_text(encoding="utf-8"))
ROWS = [(name, group["pieces"]) for group in PIECES["groups"] for name in group["pre"]]


def cut(name: str, text: str) -> list[str]:
    row = pre_tokenizer(name)
    assert row is not None
    return [piece for piece, _ in Splitter(row)(text)]


@pytest.mark.parametrize(("name", "rows"), ROWS, ids=[name for name, _ in ROWS])
def test_pieces_are_the_recorded_ones(name: str, rows: list[list[str] | None]) -> None:
    pairs = [(text, row) for text, row in zip(PIECES["texts"], rows, strict=True) if row is not None]
    assert len(pairs) >= 10
    for text, row in pairs:
        assert cut(name, text) == row


def test_every_id_of_the_table_is_recorded_or_needs_no_cutting() -> None:
    named = {name for name, _ in ROWS}
    assert {name for name in known_pre_tokenizers() if pre_tokenizer(name).patterns} == named  # type: ignore[union-attr]


@pytest.mark.parametrize("name", [name for name, _ in ROWS])
def test_pieces_put_together_are_the_text(name: str) -> None:
    for text in (*PIECES["texts"], "  \u3000\u00a0 x", "\x00\n\r\n\t"):
        assert "".join(cut(name, text)) == text


PARTS = (
    "a", "ab", "Ab", "don't", "we'll", "I'M", " ", "  ", "   ", "\n", "\r\n", "\t", "1", "12", "1234567", ".", "...",
    "!?", "(", "$", "<sentinel:7>", "IMGIMGABZ", "\u00e9", "e\u0301", "\u0301", "\u65e5\u672c", "\u304b",
    "\ud55c\uad6d", "\u0939\u093f\u0928", "\u3000", "\u00a0", "/", "a/b", "_x", "\U0001f600",
    "x a", "a x", "the cat", " z", "\u00df",
)  # fmt: skip


@pytest.mark.sweep(30)
@pytest.mark.parametrize("name", [name for name, _ in ROWS if pre_tokenizer(name).cuts_words])  # type: ignore[union-attr]
@settings(max_examples=60)
@given(parts=st.lists(st.sampled_from(PARTS), max_size=24))
def test_text_can_be_cut_between_words(name: str, parts: list[str]) -> None:
    for text in ("".join(parts), " ".join(parts)):
        whole = cut(name, text)
        for found in BETWEEN_WORDS.finditer(text):
            assert cut(name, text[: found.start()]) + cut(name, text[found.start() :]) == whole


@pytest.mark.parametrize(("name", "text"), [("exaone-moe", "x a b"), ("gemma4", "the cat")])
def test_text_can_not_be_cut_where_pieces_hold_several_words(name: str, text: str) -> None:
    row = pre_tokenizer(name)
    assert row is not None
    assert not row.cuts_words
    if row.patterns:
        assert any(BETWEEN_WORDS.search(piece) for piece in cut(name, text))


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        # What the patterns' authors intended where llama.cpp goes another way.
        ("gpt-4o", "camelCase HTTPServer", ["camel", "Case", " HTTPServer"]),
        ("tekken", "हिन्दी", ["हिन्दी"]),
        ("kimi-k2", "中文abc漢字", ["中文", "abc", "漢字"]),
        ("superbpe", "1234567", ["1", "234", "567"]),
        ("afmoe", "1234567", ["1", "234", "567"]),
        ("llama-bpe", "1234567", ["123", "456", "7"]),
        ("qwen2", "12", ["1", "2"]),
        ("gpt-2", "12 don't", ["12", " don", "'t"]),
        ("falcon", "12345", ["123", "45"]),
    ],
)
def test_pieces_by_hand(name: str, text: str, pieces: list[str]) -> None:
    assert cut(name, text) == pieces


def test_an_unknown_id_is_an_error_that_names_it_and_the_remedy() -> None:
    with pytest.raises(UnsupportedModelError, match=r"(?s)pre is 'nobody-2'.*overrides=.*llama-bpe"):
        make(byte_level(["a b"], pre="nobody-2"))


def test_a_missing_id_is_the_default_one_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = make(byte_level(["a b"]), pre=None)
    assert tokenizer.pre == "default"
    assert "tokenizer.ggml.pre is missing" in caplog.text


def test_ignore_merges_takes_a_piece_that_is_a_token_whole() -> None:
    # "abc" can't be reached by merging: "b c" comes first.
    merges = ["b c", "a b", "ab c"]
    taken = make(byte_level(merges, pre="llama-bpe"))
    merged = make(byte_level(merges, pre="dbrx"))
    assert [taken.id_to_token(i) for i in taken.encode("abc")] == ["abc"]
    assert [merged.id_to_token(i) for i in merged.encode("abc")] == ["a", "bc"]
