"""Pickling and copying of what the package makes: what travels does the same there, what stays says what to do."""

import asyncio
import copy
import gc
import multiprocessing
import os
import pickle
import shutil
import threading
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

import oxillama as ox
import oxillama.errors
from oxillama.core.context import ENGINES
from oxillama.core.loading import shipped_model
from oxillama.engine.async_engine import AsyncEngine
from oxillama.sampling import Sampler, SamplerChain
from oxillama.speculative.async_draft import SpeculativeDecoder
from tests.fakes import make_engine
from tests.lora.files import linear_shapes, random_factors, write_adapter

SAME = {"max_tokens": 12, "seed": 1, "ignore_eos": True}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def again(one):
    return pickle.loads(pickle.dumps(one))


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    path = tmp_path_factory.mktemp("adapter") / "a.gguf"
    with ox.gguf.open(shipped_model()) as file:
        arch = file.metadata.arch
    write_adapter(path, arch, random_factors(linear_shapes(shipped_model()), 2))
    return path


# ---- to another process


@pytest.fixture(scope="module", params=["spawn", "forkserver"])
def pool(request):
    """One worker, so that its tasks meet what earlier ones left."""
    if request.param not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {request.param} here")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(request.param)) as pool:
        yield pool


def text_of(engine, prompt, **options):
    """And the process, and what the engine has read in all: an engine that is opened anew has read this alone."""
    return engine.generate(prompt, **SAME, **options).token_ids, os.getpid(), engine.metrics_snapshot().prompt_tokens


def test_an_engine_opens_once_in_a_process_for_all_of_its_pickles(engine, pool):
    prompts = ["The cat", "Once upon a time", "A"]
    found = [pool.submit(text_of, engine, prompt).result() for prompt in prompts]
    assert [tokens for tokens, _, _ in found] == [engine.generate(p, **SAME).token_ids for p in prompts]
    (pid,) = {pid for _, pid, _ in found}
    assert pid != os.getpid()
    n_read = [n for _, _, n in found]
    assert n_read == sorted(set(n_read))  # it has read the prompts before, too


def test_an_engine_takes_its_settings_and_adapters_along(pool, adapter):
    overrides = {"tokenizer.ggml.add_bos_token": False}
    with ox.load(context_size=64, kv_type="f32", num_threads=1, overrides=overrides) as engine:
        engine.load_lora("a", adapter)
        engine.push_lora("a", 0.5)
        expected = engine.generate("The", **SAME).token_ids, engine.generate("The", lora=["a"], **SAME).token_ids
        found = [pool.submit(text_of, engine, "The", **o).result()[0] for o in ({}, {"lora": ["a"]})]
        assert tuple(found) == expected
        assert expected[0] != expected[1]
        assert pool.submit(settings_of, engine).result() == settings_of(engine) == (64, "f32", 1, ["a"], [0.5], False)


def settings_of(engine):
    config = engine.config
    pushed = [scale for _, scale in engine.pushed_loras]
    return engine.context_size, config.kv_type, engine.num_threads, [*engine.loras], pushed, engine.tokenizer.add_bos


def with_others(engine, speculative, tokenizer, grammar, template, chain):
    """All of them at work."""
    assert speculative.engine is engine.engine
    async_text = asyncio.run(engine.generate("The", **SAME)).token_ids
    guessed = speculative.generate("The", **SAME)
    assert guessed.speculation.drafted
    state = grammar.state(ox.Vocabulary([b'{"n": ', b"1", b"}"]))
    state.advance(0)
    return (
        async_text, guessed.token_ids, tokenizer.encode("Hello there"), grammar.accepts('{"n": 17}'),
        template.render([{"role": "user", "content": "hi"}]), chain.config.top_k, state.is_complete,
    )  # fmt: skip


def test_others_travel_with_it(engine, pool):
    template = ox.ChatTemplate("{{ bos_token }}{{ messages[0].content }}", bos_token="<s>")
    with ox.SpeculativeEngine(
        engine, [ox.PromptLookup(texts=["The cat"]), ox.DraftModel(ox.shipped_draft())], adaptive=False
    ) as both:
        others = (
            AsyncEngine(engine), both, ox.Tokenizer.from_gguf(shipped_model()), ox.JsonSchemaCompiler.compile(SCHEMA),
            template, SamplerChain.from_config(ox.SamplerConfig(top_k=7)),
        )  # fmt: skip
        assert pool.submit(with_others, *others).result() == with_others(*others)
        both.draft[1].close()


def overflows(engine):
    engine.generate("a " * 10_000)


def test_errors_come_back_as_they_are(engine, pool):
    with pytest.raises(ox.ContextOverflowError, match="context_size") as info:
        pool.submit(overflows, engine).result()
    assert isinstance(info.value, ValueError)
    with pytest.raises(ox.PickleError, match="give a deadline"):
        pool.submit(id, ox.CancelToken()).result()


@pytest.mark.parametrize("name", oxillama.errors.__all__)
def test_every_error_survives(name):
    error = getattr(ox, name)("a message: 'with' quotes")
    error.add_note("a note")
    found = again(error)
    assert (type(found), str(found), found.args) == (type(error), str(error), error.args)
    assert found.__notes__ == ["a note"]
    assert (type(copy.copy(error)), str(copy.copy(error))) == (type(error), str(error))


# ---- in one process


def test_in_its_own_process_a_pickle_is_the_engine_itself(engine):
    assert again(engine) is engine
    assert copy.copy(engine) is copy.deepcopy(engine) is engine
    assert copy.deepcopy({"engine": engine, "n": [1]})["engine"] is engine
    assert again(AsyncEngine(engine)).engine is engine
    assert copy.copy(both := AsyncEngine(engine)) is both


def test_many_threads_open_one(adapter):
    with ox.load(num_threads=1, context_size=128) as engine:
        engine.apply_lora(adapter, 0.25)
        data = pickle.dumps(engine)
    found = []
    threads = [threading.Thread(target=lambda: found.append(pickle.loads(data))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(map(id, found))) == 1
    assert found[0] is not engine
    found[0].close()
    assert ENGINES._last is None
    other = pickle.loads(data)
    assert other is not found[0]
    assert not other.closed
    other.close()


def test_the_engine_that_was_opened_last_is_kept():
    data = []
    for size in (100, 101):
        with ox.load(num_threads=1, context_size=size) as engine:
            data.append(pickle.dumps(engine))
    marks = []
    for part in data:
        engine = pickle.loads(part)
        marks.append(engine.context_size)
        engine.generate("a", max_tokens=1)
        del engine
    gc.collect()
    assert marks == [100, 101]
    found = [pickle.loads(part).metrics_snapshot().generation_tokens for part in reversed(data)]
    assert found == [1, 0]  # the first of them had to be loaded again
    ENGINES._last.close()


def test_paths_are_those_of_the_loading_process(tmp_path, monkeypatch):
    shutil.copy(shipped_model(), tmp_path / "m.gguf")
    monkeypatch.chdir(tmp_path)
    with ox.load("m.gguf", tokenizer_path="m.gguf", num_threads=1) as engine:
        tokens = engine.generate("The", **SAME).token_ids
        monkeypatch.chdir("/")
        data = pickle.dumps(engine)
        words = again(ox.Tokenizer.from_gguf(tmp_path / "m.gguf"))
    assert words.encode("The") == engine.tokenizer.encode("The")
    with pickle.loads(data) as other:
        assert other.generate("The", **SAME).token_ids == tokens
        assert other.config.tokenizer_path == str(tmp_path / "m.gguf")


def test_another_file_under_the_same_name_is_refused(tmp_path, adapter):
    model, lora = tmp_path / "m.gguf", tmp_path / "a.gguf"
    shutil.copy(shipped_model(), model)
    shutil.copy(adapter, lora)
    with ox.load(model, num_threads=1) as engine:
        plain = pickle.dumps(engine)
        engine.load_lora("a", lora)
        data, words = pickle.dumps(engine), pickle.dumps(ox.Tokenizer.from_gguf(model))
        drafts = pickle.dumps(ox.DraftModel(model, num_threads=1))
        kept = pickle.dumps(engine.loras["a"])
    write_adapter(lora, engine.metadata.arch, random_factors(linear_shapes(model), 2, seed=9))
    for one in (data, kept):
        with pytest.raises(ox.PickleError, match=r"a\.gguf: this is not the adapter that was pickled"):
            pickle.loads(one)
    os.remove(model)
    shutil.copy(ox.shipped_draft(), model)
    for one in (plain, drafts):
        with pytest.raises(ox.PickleError, match=r"model_path .*m\.gguf is not the file that the pickled"):
            pickle.loads(one)
    os.remove(model)
    for one in (plain, words, drafts):
        if one is words:
            gc.collect()
        with pytest.raises(ox.ModelNotFoundError):
            pickle.loads(one)


def test_a_tokenizer_keeps_its_overrides_and_is_made_once(tmp_path):
    path = tmp_path / "m.gguf"
    shutil.copy(shipped_model(), path)
    plain = ox.Tokenizer.from_gguf(path)
    with ox.gguf.open(path, overrides={"tokenizer.ggml.add_bos_token": not plain.add_bos}) as file:
        other = ox.Tokenizer.from_gguf(file)
    data, expected = pickle.dumps(other), other.encode("Hello")
    assert pickle.loads(data) is other
    del other, file
    gc.collect()
    found = pickle.loads(data)
    assert found.encode("Hello") == expected != plain.encode("Hello")
    assert pickle.loads(data) is found
    assert copy.deepcopy(found) is copy.copy(found) is found


GRAMMARS = {
    "gbnf": (lambda: ox.Grammar.parse('root ::= "a"+'), "aa", "b"),
    "regex": (lambda: ox.Grammar.from_regex("[ab]+c"), "abc", "c"),
    "choices": (lambda: ox.Grammar.from_choices(iter(["one", "two"])), "two", "three"),
    "schema": (lambda: ox.JsonSchemaCompiler.compile(SCHEMA), '{"n": 3}', "{}"),
    "narrow": (lambda: ox.JsonSchemaCompiler.compile(SCHEMA, mode="generate"), '{"n": 3}', '{"n": 3.0}'),
    "flexible": (lambda: ox.JsonSchemaCompiler.compile(SCHEMA, whitespace="flexible"), '{ "n" :3}', "{}"),
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_grammars_travel_by_their_sources(name):
    make, yes, no = GRAMMARS[name]
    found = again(make())
    assert found.accepts(yes)
    assert not found.accepts(no)
    assert copy.copy(found) is copy.deepcopy(found) is found
    assert again(found).accepts(yes)


def test_a_grammar_with_tokens_takes_the_vocabulary_along(engine):
    tokenizer = engine.tokenizer
    name = tokenizer.id_to_token(tokenizer.eos_id)
    grammar = ox.Grammar.parse(f'root ::= "x" {name}', token_id=tokenizer.token_to_id)
    assert again(grammar).accepts(f"x<[{tokenizer.eos_id}]>")
    assert not again(grammar).accepts("x<[7]>")


def test_a_schema_that_is_changed_later_does_not_change_the_pickle():
    schema = {"type": "integer", "maximum": 5}
    grammar = ox.JsonSchemaCompiler.compile(schema)
    schema["maximum"] = 500
    assert not again(grammar).accepts("100")


def test_parts_that_a_schema_has_in_common_stay_in_common():
    """Written out, it would be 2^40 times as long."""
    schema = {"type": "integer"}
    for _ in range(40):
        schema = {"type": "object", "properties": {"a": schema, "b": schema}, "required": ["a"]}
    data = pickle.dumps(ox.JsonSchemaCompiler.compile(schema))
    assert len(data) < 10_000
    assert pickle.loads(data).accepts('{"a": ' * 40 + "7" + "}" * 40)


def test_settings_and_numbers(engine):
    engine.generate("a", max_tokens=1)
    snapshot = engine.metrics_snapshot()
    assert again(snapshot) == copy.deepcopy(snapshot) == snapshot
    assert again(snapshot).prometheus() == snapshot.prometheus()
    with pytest.raises(TypeError):
        again(snapshot).finished["stop"] = 7
    config = ox.EngineConfig(
        "m.gguf", overrides={"a.b": np.arange(3)}, rope={"scaling": "linear", "factor": 2.0}, offload=1 << 20
    )
    found = again(config)
    assert repr(found) == repr(copy.deepcopy(config)) == repr(config)
    with pytest.raises(TypeError):
        found.overrides["c"] = 1
    assert again(found).rope == config.rope


def test_a_lookup_travels_without_what_it_knows_of_an_engine(engine):
    lookup = ox.PromptLookup(3, 2, texts=["The cat sat on the mat"])
    engine.generate("The cat", draft=lookup, **SAME)
    found = again(lookup)
    assert (found.max_ngram, found.min_ngram, found.texts) == (3, 2, lookup.texts)
    with ox.load(num_threads=1) as other:
        assert other.generate("The cat", draft=found, **SAME) == engine.generate("The cat", **SAME)


# ---- what stays


def stayers(engine, folder):
    """Objects, and what their refusal names."""
    chain = SamplerChain.from_config(ox.SamplerConfig())
    asynchronous = AsyncEngine(engine)
    return {
        "Session": (engine.session(), "snapshot_bytes"),
        "Conversation": (engine.conversation(), "snapshot_bytes"),
        "Chunks": (engine.stream("a"), "snapshot_bytes"),
        "AsyncChunks": (asynchronous.stream("a"), "snapshot_bytes"),
        "BeamRounds": (engine.beam_rounds("a"), "snapshot_bytes"),
        "Batch": (engine.batch(["a"]), "its prompts"),
        "TokenStream": (engine.tokenizer.stream(), "Tokenizer.stream"),
        "GrammarState": (ox.Grammar.parse('root ::= "a"').state(ox.Vocabulary([b"a"])), "from_state"),
        "GGUFFile": (ox.gguf.open(shipped_model()), "by its path"),
        "Sampler": (Sampler(chain), "from_state"),
        "CancelToken": (ox.CancelToken(), "deadline"),
        "SpeculativeDecoder": (SpeculativeDecoder(ox.shipped_draft(), num_threads=1), "DraftModel"),
    }


def test_what_stays_says_what_to_do(engine, tmp_path):
    for name, (one, remedy) in stayers(engine, tmp_path).items():
        calls = [pickle.dumps, copy.deepcopy, copy.copy]
        for call in {"CancelToken": calls[:1], "Sampler": calls[:2]}.get(name, calls):
            with pytest.raises(ox.PickleError, match=rf"{name} objects can't be pickled or copied: .*{remedy}") as info:
                call(one)
            assert isinstance(info.value, TypeError)
        if hasattr(one, "close"):
            one.close()


def test_an_async_batch_stays_too(engine):
    async def use():
        async with AsyncEngine(engine).batch(["a"]) as batch:
            with pytest.raises(ox.PickleError, match="its prompts"):
                pickle.dumps(batch)

    asyncio.run(use())


def test_copies_of_tokens_and_samplers():
    token = ox.CancelToken()
    copy.copy(token).cancel()
    assert copy.deepcopy([token])[0].cancelled
    sampler = Sampler(ox.SamplerConfig(seed=1))
    twin = copy.copy(sampler)
    row = np.zeros(50, np.float32)
    assert [sampler.sample(row) for _ in range(5)] == [twin.sample(row) for _ in range(5)]


def test_engines_of_no_file_say_so():
    with pytest.raises(ox.PickleError, match="made of parts that are of no file"):
        pickle.dumps(make_engine())
    with open(shipped_model(), "rb") as file:
        data = file.read()
    with (
        ox.load(data, num_threads=1) as engine,
        pytest.raises(ox.PickleError, match=r"from bytes.*load it from a path"),
    ):
        pickle.dumps(engine)
    with pytest.raises(ox.PickleError, match=r"Tokenizer.from_gguf\(path\)"):
        pickle.dumps(ox.Tokenizer.from_gguf(data))
    with ox.DraftModel(data, num_threads=1) as draft, pytest.raises(ox.PickleError, match=r"this DraftModel .*bytes"):
        pickle.dumps(draft)


def test_closed_ones_say_so():
    engine = ox.load(num_threads=1)
    engine.close()
    with pytest.raises(ox.EngineClosedError):
        pickle.dumps(engine)
    draft = ox.DraftModel(ox.shipped_draft(), num_threads=1)
    draft.close()
    with pytest.raises(ox.EngineClosedError):
        pickle.dumps(draft)


def test_a_speculative_engine_closes_what_its_original_closes():
    with ox.SpeculativeEngine(None, ox.shipped_draft(), num_threads=1) as both:
        data = pickle.dumps(both)
        expected = both.generate("The", **SAME).token_ids
    found = pickle.loads(data)
    assert found.generate("The", **SAME).token_ids == expected
    engine, draft = found.engine, found.draft
    found.close()
    assert engine.closed
    assert draft.closed
