"""The shipped model through the engine: results don't depend on how they were asked for, to the bit."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import oxillama as ox
from oxillama.sampling import Sampler
from tests.fakes import assert_idle, core_of
from tests.processes import fork, in_child, in_threads

STORY = "Once upon a time, in a village by the sea, there lived"
PROMPTS = [STORY, "Once upon a time", "The cat", "In the morning, the old man went to the"]


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1) as engine:
        yield engine
        assert_idle(engine)


@pytest.fixture(scope="module")
def stories(engine):
    """What each prompt gives alone, by stepping with the low-level session: the slow, readable way."""
    found = []
    for prompt in PROMPTS:
        ids = engine.tokenize(prompt)
        sampler, tokens = Sampler(replace(engine.sampling_defaults, seed=7), prompt=ids), []
        engine.reset()
        row = engine.prefill(ids)
        while len(tokens) < 40:
            token = sampler.sample(row)
            if engine.is_eos(token):
                break
            sampler.accept(token)
            tokens.append(token)
            row = engine.forward_one(token)
        found.append(tokens)
    engine.reset()
    return found


def test_generate_equals_stepping(engine, stories):
    assert [engine.generate(p, max_tokens=40, seed=7).token_ids for p in PROMPTS] == stories


def test_a_batch_equals_each_alone(engine, stories):
    assert [r.token_ids for r in engine.generate(PROMPTS, max_tokens=40, seed=7)] == stories


def test_stream_equals_generate(engine, stories):
    for prompt, expected in zip(PROMPTS, stories, strict=True):
        chunks = list(engine.stream(prompt, max_tokens=40, seed=7))
        assert [t for c in chunks for t in c.token_ids] == expected
        whole = engine.generate(prompt, max_tokens=40, seed=7)
        assert "".join(c.text for c in chunks) == whole.text == engine.tokenizer.decode(expected, continuation=True)


def test_threads_at_once(engine, stories):
    calls = [lambda p=p: engine.generate(p, max_tokens=40, seed=7).token_ids for p in PROMPTS]
    assert in_threads(*calls) == stories


@pytest.mark.parametrize(
    "fields",
    [
        {"prefill_chunk_size": 1},
        {"prefill_chunk_size": 7},
        {"prefill_chunk_size": 64},
        {"num_threads": 2},
        {"num_threads": 3},
        {"kv_block_size": 64},
        {"repack": False},
        {"context_size": 128},
    ],
    ids=str,
)
def test_settings_that_change_no_result(engine, stories, fields):
    ids = engine.tokenize(STORY)
    with ox.load(**{"num_threads": 1, **fields}) as other:
        assert [r.token_ids for r in other.generate(PROMPTS, max_tokens=40, seed=7)] == stories
        assert np.array_equal(other.forward_logits(ids), engine.forward_logits(ids))
        assert np.array_equal(other.embed(PROMPTS), engine.embed(PROMPTS))


def test_logits_of_a_text_equal_stepping(engine):
    ids = engine.tokenize(STORY)
    rows = engine.forward_logits(ids)
    assert rows.shape == (len(ids), engine.n_vocab)
    engine.reset()
    assert all(np.array_equal(engine.forward_one(t), row) for t, row in zip(ids, rows, strict=True))
    engine.truncate(3)
    assert np.array_equal(engine.prefill(ids[3:]), rows[-1])
    assert np.array_equal(engine.forward_decode(ids[5], 5), rows[5])
    engine.reset()


def test_tells_a_story(engine):
    r = engine.generate("Once upon a time", max_tokens=60, seed=1)
    assert r.finish_reason in ("stop", "length")
    words = r.text.split()
    assert len(words) > 20
    assert len(set(words)) > 12


def test_chat(engine):
    messages = [{"role": "user", "content": "What is 2 + 3?"}]
    r = engine.chat(messages, max_tokens=40, temperature=0)
    assert r.finish_reason == "stop"
    assert re.fullmatch(r"2 \+ 3 = \d+\.", r.text.strip())
    assert "".join(c.text for c in engine.chat(messages, max_tokens=40, temperature=0, stream=True)) == r.text
    ids = engine.chat_tokens(messages)
    assert engine.generate(ids, max_tokens=40, temperature=0).text == r.text
    assert ids.count(engine.tokenizer.bos_id) <= 1


def test_chat_with_a_template_of_ones_own(engine):
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    r = engine.chat([{"role": "user", "content": "Once upon"}], chat_template=template, max_tokens=9, seed=1)
    assert r.token_ids == engine.generate("Once upon", max_tokens=9, seed=1).token_ids


def test_embeddings(engine):
    rows = engine.embed(["The cat sat.", "The cat sat.", "Seven apples"])
    assert rows.shape == (3, engine.model_config.n_embd)
    assert rows.dtype == np.float32
    assert np.array_equal(rows[0], rows[1])
    assert not np.array_equal(rows[0], rows[2])
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1.0, abs=1e-6)
    every = engine.embed("The cat sat.", pooling="none", normalize=False)
    assert np.array_equal(every[-1], engine.embed("The cat sat.", pooling="last", normalize=False))


def test_text_and_back(engine):
    ids = engine.tokenize("A café — naïve! 🙂")
    assert ids[0] == engine.tokenizer.bos_id
    assert engine.detokenize(engine.tokenize("A café — naïve! 🙂", add_special=False)) == "A café — naïve! 🙂"


def test_what_was_loaded(engine):
    assert engine.n_vocab == engine.model_config.n_vocab == engine.tokenizer.n_vocab
    assert engine.context_size == min(engine.model_config.context_length, 4096)
    assert engine.metadata["general.architecture"] == engine.model_config.arch == "llama"
    assert engine.memory_bytes()["kv_cache"] > 0
    assert engine.num_threads == 1


def test_load_from_bytes(engine):
    from oxillama.core.loading import shipped_model

    with open(shipped_model(), "rb") as f, ox.load(f.read(), num_threads=1) as other:
        assert (
            other.generate("The cat", max_tokens=5, seed=1).token_ids
            == engine.generate("The cat", max_tokens=5, seed=1).token_ids
        )


def test_context_longer_than_trained_is_refused_unless_overridden(engine):
    trained = engine.model_config.context_length
    key = "llama.context_length"
    with pytest.raises(ox.ConfigError, match=rf"at most the {trained} tokens.*not {2 * trained}.*overrides.*{key}"):
        ox.load(context_size=2 * trained)
    with ox.load(context_size=2 * trained, overrides={key: 2 * trained}, num_threads=1) as longer:
        assert longer.context_size == 2 * trained
        assert np.isfinite(longer.forward_logits([1] * (trained + 5))).all()


def test_kv_budget(engine):
    block = engine.memory_bytes()["kv_cache"] // core_of(engine).pool.n_blocks
    with ox.load(kv_budget=3 * block + 1, num_threads=1) as small:
        assert len(small.generate([5], ignore_eos=True).token_ids) == 47
        with pytest.raises(ox.KvCacheFullError, match="3 in all"):
            small.generate([5] * 40, max_tokens=40)
    for huge in (1 << 45, 1 << 62):
        with pytest.raises(
            ox.ConfigError, match=f"kv_budget must be at most about .* bytes for this model, not {huge}"
        ):
            ox.load(kv_budget=huge)
    with pytest.raises(ox.ConfigError, match=f"kv_budget must be at least {block} bytes"):
        ox.load(kv_budget=block - 1)


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.gguf"])
def test_a_tokenizer_of_another_kind(name, tmp_path):
    path = tmp_path / name
    with pytest.raises(ox.ModelNotFoundError, match=f"tokenizer_path: .*{name}"):
        ox.load(tokenizer_path=path)
    path.write_text('{"model": {}}' * 9)
    with pytest.raises(ox.GGUFError, match="tokenizer_path must be a GGUF file"):
        ox.load(tokenizer_path=path)


def test_a_tokenizer_from_another_file(engine):
    from oxillama.core.loading import shipped_model

    with ox.load(tokenizer_path=shipped_model(), num_threads=1) as other:
        assert other.tokenize(STORY) == engine.tokenize(STORY)


def test_a_tokenizer_from_a_file_of_any_name(engine, tmp_path):
    from oxillama.core.loading import shipped_model

    path = tmp_path / "model"
    path.symlink_to(shipped_model())
    with ox.load(tokenizer_path=path, num_threads=1) as other:
        assert other.tokenize(STORY) == engine.tokenize(STORY)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_model_in_memory(engine, kind):
    from oxillama.core.loading import shipped_model

    with open(shipped_model(), "rb") as f, ox.load(kind(f.read()), num_threads=1) as other:
        assert np.array_equal(other.forward_logits([5, 6]), engine.forward_logits([5, 6]))


def test_an_unknown_architecture_is_named_before_anything_that_its_file_lacks(tmp_path):
    path = tmp_path / "model.gguf"
    ox.gguf.write_gguf(path, {"general.architecture": "perceptron"}, {})
    with pytest.raises(ox.UnsupportedModelError, match=r"'perceptron' is not supported; supported: .*llama"):
        ox.load(path)


def test_missing_model(tmp_path):
    with pytest.raises(ox.ModelNotFoundError, match=r"nothing\.gguf"):
        ox.load(tmp_path / "nothing.gguf")
    with pytest.raises(ox.LoadError):
        ox.load(tmp_path)
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(ox.LoadError):
        ox.load(tmp_path / "empty.gguf")


@fork
@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_forked_child_computes_the_same(stories, num_threads):
    with ox.load(num_threads=num_threads) as engine:
        engine.generate(STORY, max_tokens=3)
        assert in_child(lambda: engine.generate(PROMPTS, max_tokens=40, seed=7)[0].token_ids == stories[0]) == 0
        assert engine.generate(PROMPTS[0], max_tokens=40, seed=7).token_ids == stories[0]


def test_chat_gives_json_when_asked(engine):
    r = engine.chat([{"role": "user", "content": "Describe a character as JSON."}], max_tokens=80, temperature=0)
    assert isinstance(json.loads(r.text), dict)
