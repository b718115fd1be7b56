"""Kept pieces: ids are the same with them and without, and each owner has its own."""

import pytest

from oxillama.tokenizer.kept import LEAST, MAX_BYTES, MAX_PIECES, KeptPieces
from tests.tokenizer.build import tokenizer

LONG = "The quick brown fox jumps over the lazy dog, é ▁ 12345. " * 20


@pytest.mark.parametrize("name", ["gpt-2", "llama-spm", "qwen2", "gemma-4"])
def test_ids_are_those_of_a_tokenizer_that_keeps_nothing(name):
    vocab = tokenizer(name)
    marks = [m for m in ("<s>", "<|im_start|>", "<|endoftext|>", "<bos>") if vocab.token_to_id(m) is not None]
    for special in (False, True):
        for text in (LONG, f"{marks[0]}{LONG}{marks[0]}more", f"{marks[0]}{LONG}{marks[0]}else {LONG}", LONG):
            alone = vocab.encode(text, parse_special=special)
            for _ in range(2):
                found = vocab.encode(text, parse_special=special, owner="a")
                assert found == alone
                found.append(0)  # a caller's list is its own


def test_each_owner_has_its_own():
    kept, made = KeptPieces(), []

    def make(piece):
        made.append(piece)
        return [1, 2, 3]

    for owner in ("a", "a", "b", "b", "a"):
        assert kept.encode(owner, LONG, make) == [1, 2, 3]
    assert len(made) == 2
    for _ in range(2):
        kept.encode("a", LONG[: LEAST - 1], make)  # too short to be kept
    assert len(made) == 4


def test_what_is_kept_is_bounded():
    kept = KeptPieces()
    for i in range(2 * MAX_PIECES):
        kept.encode("a", f"{i} {LONG}", lambda piece: [1])
    assert len(kept._kept) == MAX_PIECES
    assert ("a", f"{i} {LONG}") in kept._kept
    for i in range(4):
        kept.encode("a", str(i) * (MAX_BYTES // 2), lambda piece: [1])
    assert sum(len(text) + 8 * len(ids) for (_, text), ids in kept._kept.items()) <= MAX_BYTES
    assert len(kept._kept) >= 1
