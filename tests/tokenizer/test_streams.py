"""Streams against `decode`, for every kind of vocabulary."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizer.build import RECORDED, SENTENCEPIECE, make, tokenizer
from tests.tokenizer.kinds import KINDS


@pytest.mark.parametrize("name", [*RECORDED, *SENTENCEPIECE, *KINDS])
def test_pieces_put_together_are_what_decode_gives(name: str) -> None:
    vocab = make(KINDS[name]()) if name in KINDS else tokenizer(name)
    special = [i for i in range(vocab.n_vocab) if vocab.token_type(i) != 1][:20]
    some = st.integers(0, vocab.n_vocab - 1)

    @settings(max_examples=60)
    @given(st.lists(st.sampled_from(special) | some if special else some, max_size=12), st.booleans(), st.booleans())
    def check(ids: list[int], skip: bool, continuation: bool) -> None:
        stream = vocab.stream(skip_special=skip, continuation=continuation)
        text = "".join(map(stream.push, ids)) + stream.flush()
        assert text == vocab.decode(ids, skip_special=skip, continuation=continuation)

    check()


def test_a_space_is_taken_away_behind_each_special_token() -> None:
    vocab = tokenizer("llama-spm")
    ids = vocab.encode("<s>hi</s>hi there", add_special=False, parse_special=True)
    stream = vocab.stream(continuation=False)
    assert [stream.push(token) for token in ids] == ["<s>", "hi", "</s>", "hi", " there"]
    bert = tokenizer("bert-bge")
    stream = bert.stream(continuation=False)
    assert "".join(map(stream.push, bert.encode("hello, world"))) == "[CLS]hello , world[SEP]"
