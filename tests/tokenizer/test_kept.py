"""Kept pieces: ids are the same with them and without, and each owner has its own."""

import gc
import re
import sys
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oxillama.errors import TokenizerError
from oxillama.tokenizer import kept as module
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
    assert f"{i} {LONG}" in kept._kept.contents()["a"]
    for character in ("{}", "{}é", "{}ā", "{}\N{CAT FACE}"):
        for i in range(8):
            kept.encode("a", character.format(i) + character[-1] * (MAX_BYTES // 16), lambda piece: [1])
            pieces = kept._kept.contents()["a"]
            assert sum(sys.getsizeof(text) + 8 * len(ids) for text, ids in pieces.items()) <= MAX_BYTES
        assert pieces


def test_pieces_of_many_are_not_at_the_cost_of_others():
    kept, made = KeptPieces(), []
    kept.encode("b", LONG, lambda piece: [1])
    for i in range(MAX_PIECES + 10):
        kept.encode("a", f"{i} {LONG}", lambda piece: [1])
    kept.encode("b", LONG, lambda piece: made.append(piece) or [1])
    assert not made
    assert len(kept._kept.contents()["a"]) == MAX_PIECES - 1


WORDS = st.one_of(
    st.sampled_from(["the ", "cat", " sat", "\n", "  ", "don't ", "123", "é", "日本", "a", " b", "e\u0301", "."]),
    st.text(),
)


@pytest.mark.parametrize(
    "name", ["gpt-2", "qwen2", "llama-bpe", "falcon", "starcoder", "deepseek-llm", "gemma-4", "llama-spm"]
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(texts=st.lists(WORDS, max_size=40), grown=st.lists(WORDS, max_size=10))
def test_ids_of_a_text_that_grows_are_those_of_the_whole(name, texts, grown, monkeypatch):
    monkeypatch.setattr(module, "LEAST", 3)
    monkeypatch.setattr(module, "PART", 5)
    vocab = tokenizer(name)
    text = "".join(texts)
    for end in range(len(grown) + 1):
        said = text + "".join(grown[:end])
        try:
            alone = vocab.encode(said)
        except TokenizerError as error:
            with pytest.raises(TokenizerError, match=f"^{re.escape(str(error))}$"):
                vocab.encode(said, owner="a")
        else:
            assert vocab.encode(said, owner="a") == alone
    vocab.forget_texts()


def test_what_is_appended_to_a_text_is_tokenised_alone():
    made = []

    def make(part):
        made.append(part)
        return list(part.encode())

    kept, text = KeptPieces(cuts_words=True), "".join(f"the {i} th word of it. " for i in range(400))
    assert kept.encode("a", text, make) == list(text.encode())
    assert "".join(made) == text
    n_parts = len(made)
    assert n_parts > 4
    grown = text + "And then it goes on, as before. " * 3
    assert kept.encode("a", grown, make) == list(grown.encode())
    assert len(made) == n_parts + 1
    assert grown.endswith(made[-1])
    assert len(made[-1]) < 2 * module.PART
    whole = KeptPieces()
    assert whole.encode("a", text, make) == list(text.encode())
    assert made[-1] == text


def test_threads_with_new_texts_of_many_owners():
    """Threads change places after each few bytecodes, and in each collection of garbage."""
    errors, kept = [], KeptPieces()

    def give_way(phase, info):
        time.sleep(0)

    def run(number):
        try:
            for i in range(300):
                ids = [number, i] * 200
                owner, piece = (number, i % 7), f"{number} {i} {LONG}"
                assert kept.encode(owner, piece, lambda piece, ids=ids: ids) == ids
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    gc.callbacks.append(give_way)
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)
        gc.callbacks.remove(give_way)
    assert errors == []
    assert len(kept._kept) <= MAX_PIECES
