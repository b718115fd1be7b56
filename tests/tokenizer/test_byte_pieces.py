"""Vocabularies of byte strings, as RWKV's files have them: the longest piece first, from left to right."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.errors import TokenizerError
from oxillama.tokenizer.token_bytes import from_escapes
from tests.tokenizer.build import P, make

few = settings(max_examples=60)
PIECES = [b"ab", b"abc", b"bca", b"\n\n", b"\xc3\xa4", b"\xa4b", b"it's \"", b"\\n", b"aaaa"]


def metadata(pieces, **more):
    """As the converter writes them: an end, then what Python prints of each bytes."""
    tokens = ["<s>", *(repr(piece)[2:-1] for piece in pieces)]
    types = [3] + [1] * len(pieces)
    return {"general.architecture": "rwkv7", P + "model": "rwkv", P + "tokens": tokens, P + "token_type": types} | more


def bytes_first(pieces):
    return [bytes([i]) for i in range(256)] + [piece for piece in pieces if len(piece) > 1]


def longest_first(data, pieces):
    out = []
    while data:
        out.append(max((piece for piece in pieces if data.startswith(piece)), key=len))
        data = data[len(out[-1]) :]
    return out


@pytest.mark.parametrize("piece", [*PIECES, *(bytes([i]) for i in range(256)), b"'", b'"', b"'\"\\", b"\\x41"])
def test_what_python_prints_is_read_again(piece):
    assert from_escapes(repr(piece)[2:-1]) == piece


@few
@given(st.lists(st.binary(min_size=2, max_size=6), max_size=12, unique=True), st.text("abcä\n\\'\" ☃", max_size=30))
def test_the_longest_piece_comes_first(more, text):
    pieces = bytes_first(dict.fromkeys([*PIECES, *more]))
    tokenizer = make(metadata(pieces))
    ids = tokenizer.encode(text)
    assert [pieces[i - 1] for i in ids] == longest_first(text.encode(), pieces)
    assert tokenizer.decode(ids) == text
    assert all(tokenizer.token_bytes(i) == pieces[i - 1] for i in ids)
    assert tokenizer.least_tokens(text, 1000) <= len(ids)


def test_control_tokens_are_no_text():
    tokenizer = make(metadata(bytes_first(PIECES)))
    assert tokenizer.encode("<s>") == [61, 116, 63]
    assert tokenizer.encode("<s>", parse_special=True) == [0]
    assert tokenizer.decode([0, 98], skip_special=True) == "a"
    assert not tokenizer.add_bos
    assert not tokenizer.add_space_prefix


def test_bytes_that_no_piece_begins_with_are_named():
    with pytest.raises(TokenizerError, match="text holds 'z' at position 2"):
        make(metadata([b"a", b"ab", b"b"])).encode("abz")
