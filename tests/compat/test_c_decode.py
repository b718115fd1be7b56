"""`llama_decode` and what goes with it: the loops of programs that compute with one sequence by hand."""

import ctypes
import logging

import numpy as np
import pytest

import oxillama.compat as llama_cpp
from oxillama.core.loading import shipped_model
from oxillama.errors import ConfigError, GenerateError

TEXT = b"Once upon a time there was a little fox"


@pytest.fixture
def ctx(model):
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(model.ctx), True)
    return model.ctx


@pytest.fixture
def errors(caplog):
    caplog.set_level(logging.ERROR, "oxillama")
    return caplog


def filled(tokens, start=0, wanted=None, room=None):
    """A batch as programs fill it."""
    batch = llama_cpp.llama_batch_init(room or len(tokens), 0, 4)
    batch.n_tokens = len(tokens)
    for j, token in enumerate(tokens):
        batch.token[j] = token
        batch.pos[j] = start + j
        batch.seq_id[j][0] = 0
        batch.n_seq_id[j] = 1
        batch.logits[j] = wanted is None or j in wanted
    return batch


def rows(ctx, n):
    """The logits as numpy sees C's pointer."""
    return np.ctypeslib.as_array(llama_cpp.llama_get_logits(ctx), shape=(n, ctx.n_vocab())).copy()


def test_logits_are_those_of_the_engine(ctx):
    ids = ctx.tokenize(TEXT)
    expected = ctx.engine.forward_logits(ids)
    batch = filled(ids, room=64)
    assert llama_cpp.llama_decode(ctx, batch) == 0
    assert (rows(ctx, len(ids)) == expected).all()
    llama_cpp.llama_batch_free(batch)
    assert llama_cpp.llama_decode(ctx, batch) == -1


@pytest.mark.parametrize("cut", [1, 3, 8])
@pytest.mark.parametrize("keep", [0, 1, 5])
def test_a_sequence_goes_back_and_on(ctx, cut, keep):
    ids = ctx.tokenize(TEXT)
    memory = llama_cpp.llama_get_memory(ctx)
    assert llama_cpp.llama_decode(ctx, filled(ids)) == 0
    assert llama_cpp.llama_memory_seq_rm(memory, -1, keep, -1) is True
    other = ids[:keep] + ids[::-1]
    expected = ctx.engine.forward_logits(other)
    for start in range(keep, len(other), cut):
        part = other[start : start + cut]
        assert llama_cpp.llama_decode(ctx, filled(part, start)) == 0
        assert (rows(ctx, len(part)) == expected[start : start + cut]).all()


def test_rows_that_are_wanted(ctx):
    ids = ctx.tokenize(TEXT)
    expected = ctx.engine.forward_logits(ids)
    assert llama_cpp.llama_decode(ctx, filled(ids, wanted={1, 4})) == 0
    assert (rows(ctx, 2) == expected[[1, 4]]).all()

    def row(i):
        found = llama_cpp.llama_get_logits_ith(ctx, i)
        return np.ctypeslib.as_array(found, shape=(ctx.n_vocab(),)) if found else None

    assert (row(1) == expected[1]).all()
    assert (row(4) == expected[4]).all()
    assert (row(-1) == expected[4]).all()
    assert (row(-2) == expected[1]).all()
    assert [row(i) for i in (0, 2, 99, -3)] == [None] * 4
    assert llama_cpp.llama_decode(ctx, filled([5], len(ids), wanted=())) == 0
    assert not llama_cpp.llama_get_logits(ctx)
    assert row(-1) is None


def test_greedy_loop_of_one_batch(ctx):
    """The positions and the sequence of `llama_batch_get_one` follow from what is there."""
    ids = ctx.tokenize(b"The cat")
    expected = ctx.engine.generate(ids, max_tokens=8, temperature=0).token_ids
    found, tokens = [], ids
    for _ in expected:
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        assert llama_cpp.llama_decode(ctx, llama_cpp.llama_batch_get_one(array, len(tokens))) == 0
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(ctx, -1), shape=(ctx.n_vocab(),))
        tokens = [int(logits.argmax())]
        found += tokens
    assert found == expected


def test_memory(ctx):
    memory = llama_cpp.llama_get_memory(ctx)

    def ends():
        return [llama_cpp.llama_memory_seq_pos_min(memory, 0), llama_cpp.llama_memory_seq_pos_max(memory, 0)]

    assert ends() == [-1, -1]
    assert llama_cpp.llama_decode(ctx, filled([5, 6, 7, 8])) == 0
    assert ends() == [0, 3]
    assert llama_cpp.llama_memory_seq_pos_max(memory, 1) == -1
    assert llama_cpp.llama_memory_seq_rm(memory, 0, 1, 3) is False  # others stand behind these
    assert [llama_cpp.llama_memory_seq_rm(memory, 1, 0, -1), llama_cpp.llama_memory_seq_rm(memory, 0, 4, -1)] == [
        True
    ] * 2
    assert llama_cpp.llama_memory_seq_rm(memory, 0, 2, 2) is True
    assert ends() == [0, 3]
    assert llama_cpp.llama_memory_seq_rm(memory, 0, 2, 9) is True
    assert ends() == [0, 1]
    llama_cpp.llama_memory_seq_keep(memory, 0)
    assert ends() == [0, 1]
    llama_cpp.llama_memory_seq_keep(memory, 1)
    assert ends() == [-1, -1]
    assert llama_cpp.llama_memory_can_shift(memory) is False
    assert llama_cpp.llama_decode(ctx, filled([5])) == 0
    llama_cpp.llama_kv_cache_clear(ctx)
    assert ends() == [-1, -1]


def test_nothing_else_touches_the_sequence(ctx):
    """Completions, `eval` and `generate` have sequences of their own."""
    ids = ctx.tokenize(TEXT)
    expected = ctx.engine.forward_logits([*ids, 5])[-1:]
    assert llama_cpp.llama_decode(ctx, filled(ids)) == 0
    ctx.reset()
    ctx.eval([9, 8, 7])
    ctx("Another text", max_tokens=4)
    assert ctx.eval_tokens == ctx.eval_tokens.__class__([9, 8, 7], maxlen=256)
    assert llama_cpp.llama_decode(ctx, filled([5], len(ids))) == 0
    assert (rows(ctx, 1) == expected).all()
    assert ctx.n_tokens == 3


def test_wrong_batches(ctx, errors):
    assert llama_cpp.llama_decode(ctx, filled([5, 6])) == 0
    before = rows(ctx, 2)
    wrong = {
        "token[1] is 1536": filled([5, 1536], 2),
        "token[0] is -1": filled([-1], 2),
        "pos[0] is 0, and the next position is 2": filled([5], 0),
        "pos[0] is 3, and the next position is 2": filled([5], 3),
        "it has 0 tokens": filled([]),
    }
    beyond, freed = filled([5], 2), filled([5], 2)
    beyond.n_tokens = 1 << 30
    llama_cpp.llama_batch_free(freed)
    freed.n_tokens = 1
    wrong["it has 1073741824 tokens, and room for 1"] = beyond
    wrong["it has no tokens"] = freed
    wrong["it has 3 tokens, and room for 2"] = llama_cpp.llama_batch_get_one((ctypes.c_int32 * 2)(5, 6), 3)
    two, other, nobody, embeddings = (filled([5], 2) for _ in range(4))
    two.n_seq_id[0] = 2
    other.seq_id[0][0] = 1
    nobody.seq_id[0] = None
    embeddings.embd = (ctypes.c_float * 4)()
    for batch in (two, other, nobody):
        wrong["seq_id[0] must be sequence 0 alone"] = batch
        assert llama_cpp.llama_decode(ctx, batch) == -1
    wrong["it has embeddings"] = embeddings
    for message, batch in wrong.items():
        errors.clear()
        assert llama_cpp.llama_decode(ctx, batch) == -1
        assert f"llama_decode: the batch is invalid: {message}" in errors.text
    assert llama_cpp.llama_memory_seq_pos_max(ctx, 0) == 1
    assert (rows(ctx, 2) == before).all()


def test_without_room(ctx, errors):
    assert llama_cpp.llama_decode(ctx, filled([5] * 250)) == 0
    assert llama_cpp.llama_decode(ctx, filled([6] * 7, 250)) == 1
    assert bool(llama_cpp.llama_get_logits_ith(ctx, 249))  # what was there is still there
    assert "n_ctx" in errors.text
    assert "context_size" not in errors.text
    assert llama_cpp.llama_memory_seq_pos_max(ctx, 0) == 249
    assert llama_cpp.llama_decode(ctx, filled([6] * 6, 250)) == 0


def test_batches_that_cannot_be_made():
    with pytest.raises(NotImplementedError, match="embd must be 0"):
        llama_cpp.llama_batch_init(4, 256, 1)
    for n_tokens, n_seq_max in ((-1, 1), (4, 0)):
        with pytest.raises(ConfigError, match="n_tokens must be at least 0 and n_seq_max at least 1"):
            llama_cpp.llama_batch_init(n_tokens, 0, n_seq_max)


def test_a_closed_model():
    model = llama_cpp.Llama(shipped_model(), n_ctx=32)
    model.close()
    with pytest.raises(GenerateError, match="closed"):
        llama_cpp.llama_decode(model.ctx, filled([5]))


@pytest.mark.parametrize("wanted", [[3], [0, 1, 63, 64, 149], [70, 100], list(range(0, 150, 7)), list(range(1, 150))])
def test_rows_of_some_tokens_of_a_long_batch(ctx, wanted):
    tokens = [5 + i * 31 % 900 for i in range(150)]

    def decoded(of):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(ctx), True)
        batch = filled(tokens, wanted=of)
        assert llama_cpp.llama_decode(ctx, batch) == 0
        llama_cpp.llama_batch_free(batch)
        return ctx.one_sequence.rows

    every = decoded(None)
    rows = decoded(wanted)
    assert rows.shape == (len(wanted), every.shape[1])
    assert np.array_equal(rows, every[wanted])
    assert ctx.one_sequence.position == len(tokens)


def test_a_long_batch_that_fails_leaves_the_sequence_as_it_was(ctx, monkeypatch):
    first, one = [5 + i for i in range(20)], ctx.one_sequence
    assert llama_cpp.llama_decode(ctx, filled(first)) == 0
    session, calls = one.session, []
    real = type(session).forward_logits

    def fails(self, *args, **named):
        calls.append(args)
        if len(calls) == 2:
            raise GenerateError("the model computes NaN")
        return real(self, *args, **named)

    monkeypatch.setattr(type(session), "forward_logits", fails)
    with pytest.raises(GenerateError, match="NaN"):
        llama_cpp.llama_decode(ctx, filled([9] * 150, 20, [1, 140]))
    assert one.position == len(first)
    monkeypatch.undo()
    assert llama_cpp.llama_decode(ctx, filled([9], 20)) == 0
    assert one.position == len(first) + 1
