"""Errors name the keywords of `Llama`, wherever in the engine they come from."""

import pickle

import pytest

import oxillama.compat as llama_cpp
from oxillama.compat.wording import WORDS, renamed, reworded
from oxillama.core.loading import shipped_model
from oxillama.errors import ConfigError, ContextOverflowError, KvCacheFullError, OxiLlamaError


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("context_size is 8: load with a larger context_size", "n_ctx is 8: load with a larger n_ctx"),
        ("give kv_overrides, overrides={'a': 1}", "give kv_overrides, kv_overrides={'a': 1}"),
        ("repetition_penalty_window and repetition_penalty", "last_n_tokens_size and repeat_penalty"),
        ("rope.factor must be above 0, not rope.factors", "rope_freq_scale must be above 0, not rope.factors"),
        ("lower kv_budget, context_size or kv_block_size", "lower n_ctx"),
        ("my_context_size and context_sizes", "my_context_size and context_sizes"),
    ],
)
def test_words(message, expected):
    assert reworded(message) == expected
    assert reworded(expected) == expected


def test_no_word_is_translated_twice():
    for word in WORDS.values():
        assert reworded(word) == word


def test_an_error_stays_what_it_is():
    error = ContextOverflowError("context_size is 8")
    error.more = 3
    with pytest.raises(ContextOverflowError) as caught, renamed():
        raise error
    assert caught.value is error
    assert (str(error), error.more, str(pickle.loads(pickle.dumps(error)))) == ("n_ctx is 8", 3, "n_ctx is 8")
    with pytest.raises(ValueError, match=r"^context_size$"), renamed():  # of the caller's own functions
        raise ValueError("context_size")
    with pytest.raises(ConfigError), renamed():
        raise ConfigError


@pytest.fixture(scope="module")
def small():
    with llama_cpp.Llama(shipped_model(), n_ctx=32, n_batch=32, embedding=True, seed=1) as model:
        yield model


LONG = "a long text " * 50


def begun(model):
    model.reset()
    model.eval([5] * 30)


CALLS = {
    "completion": lambda m: m(LONG),
    "list": lambda m: m(["a", LONG]),
    "stream": lambda m: list(m(LONG, stream=True)),
    "chat": lambda m: m.create_chat_completion([{"role": "user", "content": LONG}]),
    "streamed chat": lambda m: list(m.create_chat_completion([{"role": "user", "content": LONG}], stream=True)),
    "chat in a format": lambda m: llama_cpp.llama_chat_format.get_chat_completion_handler("chatml")(
        llama=m, messages=[{"role": "user", "content": LONG}]
    ),
    "embedding": lambda m: m.create_embedding(["x"], model=None) and m.embed(LONG, truncate=False),
    "eval": lambda m: m.eval([5] * 33),
    "eval after others": lambda m: begun(m) or m.eval([5] * 9),
    "generate": lambda m: next(m.generate([5] * 40)),
    "penalty": lambda m: m("x", repeat_penalty=-1.0),
    "processors": lambda m: m("x", logits_processor=3),
}
OF_THE_ENGINE = (
    "context_size",
    "prefill_chunk_size",
    "repetition_penalty",
    "logits_processors",
    "overrides=",
    "truncate()",
)


@pytest.mark.parametrize("call", CALLS)
def test_calls(small, call):
    with pytest.raises(OxiLlamaError) as caught:
        CALLS[call](small)
    assert [word for word in OF_THE_ENGINE if word in str(caught.value)] == []


def test_remedies_name_the_keyword(small):
    with pytest.raises(ContextOverflowError, match=r"reset\(\) it, or load with a larger n_ctx$"):
        small.eval([5] * 33)
    with pytest.raises(ConfigError, match=r"^repeat_penalty must be"):
        small("x", repeat_penalty=-1.0)


def test_memory_that_is_not_there(monkeypatch):
    from oxillama.kv_cache import arrays

    def fails(*args, **options):
        raise KvCacheFullError("can't be reserved (5): lower kv_budget, context_size or kv_block_size")

    monkeypatch.setattr(arrays.StateArrays, "__init__", fails)
    with pytest.raises(KvCacheFullError, match=r"can't be reserved \(5\): lower n_ctx$"):
        llama_cpp.Llama(shipped_model())
