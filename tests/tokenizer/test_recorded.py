"""Ids against those of the original tokenizers, of sentencepiece and of llama.cpp."""

import pytest

from tests.tokenizer.build import RECORDED, SENTENCEPIECE, recorded, tokenizer

LOSSLESS = [name for name in (*RECORDED, "sentencepiece_bpe") if name != "bert-bge"]


@pytest.mark.parametrize("name", [*RECORDED, *SENTENCEPIECE])
def test_plain_text_gives_the_recorded_ids(name: str) -> None:
    cases = recorded(name)["cases"]
    assert len(cases) >= 46
    found = [(text, tokenizer(name).encode(text, add_special=False)) for text, _ in cases]
    assert found == [(text, ids) for text, ids in cases]


@pytest.mark.parametrize("name", RECORDED)
def test_special_tokens_give_the_recorded_ids(name: str) -> None:
    cases = recorded(name)["special_cases"]
    found = [(text, tokenizer(name).encode(text, add_special=True, parse_special=True)) for text, _ in cases]
    assert found == [(text, ids) for text, ids in cases]


@pytest.mark.parametrize("name", LOSSLESS)
def test_recorded_ids_decode_to_their_text(name: str) -> None:
    for text, ids in recorded(name)["cases"]:
        assert tokenizer(name).decode(ids) == text


def test_word_pieces_decode_to_normalised_words() -> None:
    bert = tokenizer("bert-bge")
    assert bert.decode(bert.encode("Hello, World!", add_special=False)) == "hello , world !"
    assert bert.decode(bert.encode("Hello")) == "[CLS]hello[SEP]"
