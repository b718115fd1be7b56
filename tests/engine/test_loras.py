"""Adapters of requests: chosen by name, shared steps, caches, dialogues and sessions, unloaded while in use."""

import asyncio
import threading

import numpy as np
import pytest

import oxillama as ox
from tests.fakes import core_of
from tests.lora.shipped import GREEDY, PROMPTS, SETS, loaded, text


@pytest.fixture
def engine(adapters):
    with loaded(adapters, num_threads=2) as engine:
        yield engine


def test_adapters_change_the_text(texts_alone):
    assert len({tuple(texts_alone[PROMPTS[0], i]) for i in range(len(SETS))}) == len(SETS)


def test_one_batch_with_all_sets(engine, texts_alone):
    """Coroutines: all prompts under all sets at once, again and again over the same cache."""

    async def all_of_them():
        many = ox.AsyncEngine(engine)
        calls = [
            many.generate(p, max_tokens=24, ignore_eos=True, sampler=GREEDY, lora=lora)
            for p in PROMPTS
            for lora in SETS
        ]
        return await asyncio.gather(*calls)

    for _ in range(2):
        found = iter(asyncio.run(all_of_them()))
        for prompt in PROMPTS:
            for i in range(len(SETS)):
                assert next(found).token_ids == texts_alone[prompt, i]


def test_a_draft_without_adapters_guesses_for_texts_with_them(engine, texts_alone):
    with ox.DraftModel(engine) as draft:
        for i, lora in enumerate(SETS):
            for prompt in PROMPTS[:2]:
                assert text(engine, prompt, lora, draft=draft, adaptive=False) == texts_alone[prompt, i]


def test_threads(engine, texts_alone):
    found = {}

    def work(prompt, i):
        found[prompt, i] = text(engine, prompt, SETS[i])

    threads = [threading.Thread(target=work, args=(p, i)) for p in PROMPTS for i in range(len(SETS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == texts_alone


def test_the_prefix_cache_tells_sets_apart(engine):
    """The same long prompt under other weights finds nothing, under the same it does."""
    prompt = engine.tokenize("Once upon a time there was a little fox. " * 6)
    prefix = core_of(engine).scheduler.prefix
    for lora in SETS:
        before = prefix.hit_tokens
        first = text(engine, prompt, lora, 4)
        assert prefix.hit_tokens == before
        assert text(engine, prompt, lora, 4) == first
        assert prefix.hit_tokens > before
    before = prefix.hit_tokens
    text(engine, prompt, [("a", 0.81)], 1)
    assert prefix.hit_tokens == before
    text(engine, prompt, ["b", ("a", 0.0)], 1)  # the set of "b" alone
    assert prefix.hit_tokens > before


def test_equal_adapters_are_one(engine, adapters):
    engine.load_lora("a too", adapters[0])
    held = engine.memory_bytes()["loras"]
    assert text(engine, PROMPTS[0], [("a too", 0.8)]) == text(engine, PROMPTS[0], [("a", 0.8)])
    assert engine.memory_bytes()["loras"] == held > 0
    assert set(engine.loras) == {"a", "b", "a too"}


def test_pushed_adapters_are_for_requests_that_dont_say(engine, adapters, texts_alone):
    prompt = PROMPTS[0]
    engine.push_lora("a", 0.5)
    applied = engine.apply_lora(adapters[1], -0.5)
    assert [scale for _, scale in engine.pushed_loras] == [0.5, -0.5]
    assert text(engine, prompt, None) == texts_alone[prompt, 3]
    assert text(engine, prompt, []) == texts_alone[prompt, 0]
    assert text(engine, prompt, ["b"]) == texts_alone[prompt, 2]
    assert engine.pop_lora() is applied
    engine.push_lora("a", 0.3)
    assert text(engine, prompt, None) == text(engine, prompt, [("a", np.float32(0.5) + np.float32(0.3))])
    engine.clear_loras()
    assert engine.pushed_loras == []
    assert text(engine, prompt, None) == texts_alone[prompt, 0]


def test_a_path_is_pushed_unless_it_is_a_name(engine, adapters, texts_alone, tmp_path, monkeypatch):
    prompt = PROMPTS[0]
    for path in (adapters[1], str(adapters[1])):
        engine.push_lora(path)
        assert text(engine, prompt, None) == texts_alone[prompt, 2]
        engine.pop_lora()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b").write_bytes(b"no adapter")
    engine.push_lora("b")
    assert text(engine, prompt, None) == texts_alone[prompt, 2]
    engine.unload_lora("b")
    with pytest.raises(ox.LoadError):
        engine.push_lora("b")
    with pytest.raises(ox.ConfigError, match="no adapter is called 'c'"):
        engine.push_lora("c")


def test_unloading_leaves_it_to_those_who_use_it(engine, texts_alone):
    prompt = PROMPTS[1]
    running = engine.stream(prompt, max_tokens=24, ignore_eos=True, sampler=GREEDY, lora=[("a", 0.8)])
    tokens = list(next(running).token_ids)
    engine.unload_lora("a")
    with pytest.raises(ox.ConfigError, match="no adapter is called 'a'; loaded: 'b'"):
        text(engine, prompt, ["a"])
    for chunk in running:
        tokens += chunk.token_ids
    assert tokens == texts_alone[prompt, 1]
    assert text(engine, prompt, None) == texts_alone[prompt, 0]


def test_nobody_holds_what_was_unloaded(engine):
    text(engine, PROMPTS[0], ["a", "b"])
    for name in "ab":
        engine.unload_lora(name)
    text(engine, PROMPTS[0], None)
    assert engine.memory_bytes()["loras"] == 0


def test_streams_chats_lists_and_batches(engine, texts_alone):
    for i, lora in enumerate(SETS):
        options = {"max_tokens": 24, "ignore_eos": True, "sampler": GREEDY, "lora": lora}
        streamed = [t for chunk in engine.stream(PROMPTS[0], **options) for t in chunk.token_ids]
        assert streamed == texts_alone[PROMPTS[0], i]
        for result, prompt in zip(engine.generate(PROMPTS, **options), PROMPTS, strict=True):
            assert result.token_ids == texts_alone[prompt, i]
        for result in engine.batch(PROMPTS, **options):
            assert result.token_ids == texts_alone[PROMPTS[result.index], i]


def test_numbers(engine):
    ids = engine.tokenize(PROMPTS[0])
    plain, changed = engine.forward_logits(ids), engine.forward_logits(ids, lora=["a"])
    assert not np.array_equal(plain, changed)
    assert not np.array_equal(engine.embed(ids), engine.embed(ids, lora=["a"]))
    engine.push_lora("a")
    assert np.array_equal(engine.forward_logits(ids), changed)
    assert np.array_equal(engine.forward_logits(ids, lora=[]), plain)


def test_a_session_computes_its_tokens_again(engine):
    """Its logits are those of all its tokens under what is pushed now."""
    ids = engine.tokenize("Once upon a time there was a little fox")
    wanted = {name: engine.forward_logits(ids, lora=lora) for name, lora in (("plain", []), ("a", ["a"]))}
    engine.prefill(ids[:5])
    engine.push_lora("a")
    assert np.array_equal(engine.forward_one(ids[5]), wanted["a"][5])
    assert np.array_equal(engine.forward_one(ids[6]), wanted["a"][6])
    engine.clear_loras()
    assert np.array_equal(engine.forward_decode(ids[3], 3), wanted["plain"][3])
    assert engine.position == 4
    assert np.array_equal(engine.prefill(ids[4:]), wanted["plain"][-1])
    engine.reset()
    core_of(engine).scheduler.prefix.clear()
    assert core_of(engine).pool.blocks.n_free == core_of(engine).pool.n_blocks


def test_a_dialogue_keeps_nothing_of_other_weights(engine):
    from oxillama.core.options import read_options

    ids = engine.tokenize("Once upon a time there was a little fox")
    with engine.conversation() as talk:
        for lora in ([], ["a"], ["a"], [("a", 0.5)], []):
            given = {"max_tokens": 6, "sampler": GREEDY, "ignore_eos": True, "lora": lora}
            options = read_options("stream", given, engine.context.factory.default_chain)
            answer = [t for chunk in talk.stream(ids, options) for t in chunk.token_ids]
            assert answer == text(engine, ids, lora, 6)


def test_closing_lets_go_of_adapters(adapters):
    async def closed():
        many = await ox.AsyncEngine.load()
        many.engine.load_lora("a", adapters[0])
        many.engine.push_lora("a")
        first = await many.forward_logits([1, 5, 9], lora=[])
        second = await many.forward_logits([1, 5, 9])
        assert not np.array_equal(first, second)
        assert not np.array_equal(await many.embed([1, 5, 9], lora=[]), await many.embed([1, 5, 9]))
        await many.close()
        return many.engine

    with ox.load() as plain:
        plain.load_lora("a", adapters[0])
        plain.push_lora("a")
    for engine in (plain, asyncio.run(closed())):
        assert engine.loras == {}
        assert engine.pushed_loras == []
        assert engine.memory_bytes()["loras"] == 0


def test_an_adapter_may_be_read_before(engine, adapters, texts_alone):
    lora = ox.Lora.load(adapters[0])
    assert (lora.rank, lora.alpha) == (4, pytest.approx(0.4))
    assert "blk.0.attn_q.weight" in lora.names
    assert engine.load_lora("mine", lora) is lora
    assert text(engine, PROMPTS[0], [("mine", 0.8)]) == texts_alone[PROMPTS[0], 1]


def test_several_completions_beams_and_sessions(engine, texts_alone):
    options = {"max_tokens": 12, "ignore_eos": True, "temperature": 0.8, "seed": 3}
    for lora in SETS[1:]:
        several = engine.generate(PROMPTS[0], n=3, lora=lora, **options)
        assert [c.token_ids for c in several] != [c.token_ids for c in engine.generate(PROMPTS[0], n=3, **options)]
        assert several[0].token_ids == engine.generate(PROMPTS[0], lora=lora, **options).token_ids
    ids = engine.tokenize(PROMPTS[0])
    found = engine.beam_search(ids, beam_width=1, max_new_tokens=12, ignore_eos=True, lora=SETS[1])
    assert found[0].token_ids == texts_alone[PROMPTS[0], 1][:12]
    wanted = engine.forward_logits(ids, lora=SETS[1])
    with engine.session(lora=SETS[1]) as session:
        assert np.array_equal(session.prefill(ids[:3]), wanted[2])
        with session.fork() as twin:
            assert np.array_equal(twin.prefill(ids[3:]), wanted[-1])
            engine.push_lora("b")
            assert np.array_equal(session.prefill(ids[3:]), wanted[-1])


def test_what_is_no_adapter_is_named_with_the_loaded_ones(engine):
    with pytest.raises(ox.ConfigError, match="no adapter is called 5; loaded: "):
        engine.push_lora(5)
