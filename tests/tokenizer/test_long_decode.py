"""Many tokens are decoded in pieces, to the same text."""

import random

import pytest

import oxillama as ox


@pytest.fixture(scope="module")
def tokenizer():
    with ox.load(num_threads=1) as engine:
        yield engine.tokenizer


@pytest.mark.parametrize(("joined", "decoded"), [(1, 1), (2, 3), (7, 16)])
def test_the_text_is_that_of_one_piece(tokenizer, joined, decoded, monkeypatch):
    draw = random.Random(1)
    ids = [draw.randrange(tokenizer.n_vocab) for _ in range(300)] + tokenizer.encode("漢字 é 🙂")
    for n in (0, 1, joined, decoded, len(ids)):
        for given in ({}, {"skip_special": True}, {"continuation": True}):
            whole, data = tokenizer.decode(ids[:n], **given), tokenizer.decode_bytes(ids[:n], **given)
            with monkeypatch.context() as patch:
                patch.setattr("oxillama.tokenizer.tokenizer.JOINED", joined)
                patch.setattr("oxillama.tokenizer.tokenizer.DECODED", decoded)
                assert tokenizer.decode(ids[:n], **given) == whole == data.decode("utf-8", "replace")
                assert tokenizer.decode_bytes(ids[:n], **given) == data
