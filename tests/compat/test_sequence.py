"""`eval`, `sample`, `generate` and states; tokens, embeddings, caches, tokenizers and the Hub."""

from collections import deque

import numpy as np
import pytest

import oxillama.compat as llama_cpp
from oxillama.compat.llama_speculative import LlamaPromptLookupDecoding
from oxillama.core.loading import shipped_model
from oxillama.errors import ConfigError, GenerateError, TokenizerError
from tests.compat.shapes import SHAPES, shape
from tests.models.bert import BERT, HEADS, changed, with_head

PROMPT = b"Once upon a time"


def first(tokens, n):
    return [next(tokens) for _ in range(n)]


def test_tokens(model):
    ids = model.tokenize(PROMPT + b"<|end|>", special=True)
    assert ids == [0, 449, 456, 262, 408, 5]
    assert model.tokenize(b"<|end|>", False) == [33, 97, 446, 97, 35]
    assert model.detokenize(ids) == PROMPT
    assert model.detokenize(ids, special=True) == b"<|begin|>Once upon a time<|end|>"
    assert model.detokenize([456], prev_tokens=[449]) == b" upon"
    assert (model.token_bos(), model.token_eos(), model.token_nl(), model.n_vocab(), model.n_embd()) == (
        0, 1, 204, 1536, 256,
    )  # fmt: skip
    with pytest.raises(TokenizerError, match="text must be bytes"):
        model.tokenize("text")
    with pytest.raises(TokenizerError, match="byte 1 is not"):
        model.tokenize(b"a\xff")


def test_metadata(model):
    assert model.metadata["llama.block_count"] == "4"
    assert model.metadata["general.sampling.temp"] == "0.800000"
    assert model.metadata["tokenizer.ggml.add_eos_token"] == "false"


def test_eval_keeps_the_logits_of_all_tokens(model):
    ids = model.tokenize(PROMPT)
    model.reset()
    model.eval(ids[:2])
    model.eval(ids[2:])
    assert model.n_tokens == len(ids)
    assert model.eval_tokens == deque(ids, maxlen=256)
    assert (model.scores[: len(ids)] == model.engine.forward_logits(ids)).all()
    assert len(model.eval_logits) == len(ids)


def test_generate_is_greedy_generation(model):
    expected = model.engine.generate(model.tokenize(PROMPT), max_tokens=20, temperature=0).token_ids
    ids = model.tokenize(PROMPT)
    assert first(model.generate(ids, temp=0), 20) == expected
    assert first(model.generate(ids + expected[:3], temp=0), 5) == expected[3:8]  # begins with what is there
    tokens = model.generate(ids, temp=0)
    assert first(tokens, 2) == expected[:2]
    assert tokens.send(model.tokenize(b" The", False)) not in (None, expected[2])
    ended = model.generate(ids, temp=0, stopping_criteria=lambda input_ids, scores: len(input_ids) == len(ids) + 3)
    assert list(ended) == expected[:3]


def test_generate_ends_with_the_context(model):
    assert len(list(model.generate([449] * 250))) == 7


def test_samples(model):
    model.reset()
    with pytest.raises(GenerateError, match="eval"):
        model.sample()
    ids = model.tokenize(PROMPT)
    model.eval(ids)
    assert model.sample(temp=0) == int(model.scores[len(ids) - 1].argmax())
    assert model.sample(temp=0, idx=1) == int(model.scores[1].argmax())
    grammar = llama_cpp.LlamaGrammar.from_string('root ::= "x"')
    assert model.detokenize([model.sample(grammar=grammar)]) == b"x"
    with pytest.raises(ConfigError, match="idx must be from"):
        model.sample(idx=99)


def test_states(model):
    ids = model.tokenize(PROMPT)
    expected = first(model.generate(ids, temp=0), 12)
    model.reset()
    model.eval(ids + expected[:4])
    state = model.save_state()
    assert (state.n_tokens, state.llama_state_size) == (len(ids) + 4, len(state.llama_state))
    model.reset()
    model.eval(ids)
    with llama_cpp.Llama(shipped_model(), n_ctx=256) as other:
        for one in (model, other):
            one.load_state(state)
            assert one.eval_tokens == deque(ids + expected[:4], maxlen=256)
            assert first(one.generate([], temp=0, reset=False), 4) == expected[4:8]


def test_states_hold_the_seed(model):
    numbers = llama_cpp.LlamaGrammar.from_string("root ::= [0-9] [0-9] [0-9]")
    model.set_seed(1337)
    state = model.save_state()
    texts = [model("Pick a number:", temperature=1.0, grammar=numbers)["choices"][0]["text"] for _ in range(3)]
    model.load_state(state)
    again = [model("Pick a number:", temperature=1.0, grammar=numbers)["choices"][0]["text"] for _ in range(3)]
    assert texts == again
    assert len(set(texts)) > 1


def test_state_of_nothing(model):
    with llama_cpp.Llama(shipped_model(), n_ctx=64) as other:
        state = other.save_state()
        other.eval([449])
        other.load_state(state)
        assert other.n_tokens == 0


def test_random_draws_go_on(model):
    ids = model.tokenize(PROMPT)
    model.set_seed(3)
    one = first(model.generate(ids, temp=1.0), 10)
    assert first(model.generate(ids, temp=1.0), 10) == one
    model.set_seed(4)
    assert first(model.generate(ids, temp=1.0), 10) != one


def test_embeddings():
    with llama_cpp.Llama(shipped_model(), n_ctx=64, embedding=True, pooling_type=1, n_batch=8) as model:
        assert shape(model.create_embedding("x")) == SHAPES["embedding_mean"]
        vector, count = model.embed("a red ball", normalize=True, return_count=True)
        assert count == 4
        assert vector == model.engine.embed("a red ball", pooling="mean").tolist()
        assert len(model.embed(["a", "b"])) == 2
        assert model.embed([]) == []
        assert model.pooling_type() == llama_cpp.LLAMA_POOLING_TYPE_MEAN
        assert model.embed("a " * 30, return_count=True)[1] == 8
        with pytest.raises(ValueError, match="exceed batch size of 8"):
            model.embed("a " * 30, truncate=False)
        with pytest.raises(ConfigError, match="input must be"):
            model.embed([3])
    with llama_cpp.Llama(shipped_model(), n_ctx=64, embedding=True) as model:
        assert shape(model.create_embedding(["a", "a red ball"])) == SHAPES["embedding"]
        assert np.shape(model.embed("a red ball")) == (4, 256)


@pytest.mark.parametrize(("kind", "dims"), [(-1, (36,)), (0, (5, 36)), (1, (36,)), (2, (36,)), (3, (36,)), (4, (1,))])
def test_encoders(tmp_path, kind, dims):
    path = changed(with_head(tmp_path, head=HEADS["output"], pooling_type=2), BERT)
    with llama_cpp.Llama(str(path), n_ctx=0, embedding=True, pooling_type=kind) as model:
        one, other = model.embed(["abc", "d e"], normalize=True)
        assert np.shape(one) == dims
        assert one == model.engine.embed("abc", pooling=model.pooling).tolist() != other
        assert model.pooling_type() == (2 if kind < 0 else kind)
        with pytest.raises(GenerateError, match="embed"):
            model("abc")


def test_embeddings_need_the_keyword(model):
    with pytest.raises(RuntimeError, match="embedding=True"):
        model.embed("x")


def test_adapters(adapters):
    path = next(iter(adapters)) if isinstance(adapters, dict) else adapters[0]
    with llama_cpp.Llama(shipped_model(), lora_path=str(path), lora_scale=2.0) as model:
        ((_, scale),) = model.engine.pushed_loras
    assert scale == 2.0


def test_caches():
    class State:
        llama_state_size = 10

    cache = llama_cpp.LlamaRAMCache(capacity_bytes=25)
    one, two, three = State(), State(), State()
    cache[[1, 2, 3]], cache[[1, 2]] = one, two
    assert cache[[1, 2, 3, 4]] is one
    assert ([1] in cache, [5] in cache) == (True, False)
    cache[[7]] = three
    assert cache.cache_size == 20
    with pytest.raises(KeyError):
        cache[[9]]
    with llama_cpp.Llama(shipped_model()) as model:
        model.set_cache(cache)
        with pytest.raises(ConfigError, match="cache must be"):
            model.set_cache(3)


@pytest.mark.parametrize("stream", [False, True])
def test_a_cache_bounds_what_the_engine_keeps(stream):
    with llama_cpp.Llama(shipped_model()) as model:
        capacity = None
        for bound in (None, llama_cpp.LlamaRAMCache(capacity_bytes=1 << 15), llama_cpp.LlamaRAMCache(0)):
            model.set_cache(bound)
            answer = model("Once upon a time " * 20, max_tokens=2, stream=stream)
            list(answer)
            kept = model.engine.prefix_cache_bytes()
            assert kept <= (1 << 30 if bound is None else bound.capacity_bytes)
            assert capacity is None or kept < capacity
            capacity = kept
        assert kept == 0


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [([1, 2, 3, 1, 2], [3, 1, 2]), ([1, 2, 3], []), ([5, 5], [5]), ([1, 2, 9, 2], [9, 2])],
)
def test_prompt_lookup(tokens, expected):
    lookup = LlamaPromptLookupDecoding(max_ngram_size=2, num_pred_tokens=3)
    assert lookup(np.array(tokens, np.intc)).tolist() == expected


def test_vocab_only():
    with llama_cpp.Llama(shipped_model(), vocab_only=True) as model:
        assert model.tokenize(PROMPT) == [0, 449, 456, 262, 408]
        with pytest.raises(GenerateError, match="vocab_only=True"):
            model("x")
    tokenizer = llama_cpp.LlamaTokenizer.from_ggml_file(shipped_model())
    assert tokenizer.decode(tokenizer.encode("Once")) == "Once"


def test_tokenizers_of_transformers():
    class Words:
        def encode(self, text, add_special_tokens):
            return [len(word) for word in text.split()]

        def decode(self, ids, skip_special_tokens):
            return " ".join("x" * n for n in ids)

    tokenizer = llama_cpp.LlamaHFTokenizer(Words())
    with llama_cpp.Llama(shipped_model(), tokenizer=tokenizer) as model:
        assert model.tokenize(b"a bb ccc") == [1, 2, 3]
        assert model.detokenize([2], prev_tokens=[1]) == b" xx"
        assert model("a bb", max_tokens=1)["usage"]["prompt_tokens"] == 2


def test_rope_and_sizes():
    with llama_cpp.Llama(shipped_model(), n_ctx=0, rope_freq_scale=0.5, rope_freq_base=5e4) as model:
        config = model.engine.config.rope
        assert (config.scaling, config.factor, config.freq_base, model.n_ctx()) == ("linear", 2.0, 5e4, 1024)
    with llama_cpp.Llama(shipped_model(), type_k=8, type_v=8, n_threads=1) as model:
        assert (model.engine.config.kv_type, model.n_threads, model.n_batch) == ("q8_0", 1, 512)
    with llama_cpp.Llama(shipped_model(), type_k=2, type_v=llama_cpp.GGML_TYPE_Q4_0) as model:
        assert model.engine.config.kv_type == "q4_0"
