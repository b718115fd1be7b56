"""Drafts on the shipped model: with adapters, chats with a common prefix, schemas, and every kind of KV."""

import asyncio

import pytest

import oxillama as ox
from tests.lora.shipped import GREEDY, PROMPTS, SETS, loaded
from tests.speculative.drafts import Oracle


@pytest.fixture
def engine(adapters):
    with loaded(adapters, num_threads=2) as engine:
        yield engine


def test_one_batch_of_all_adapters_with_and_without_drafts(engine, texts_alone):
    """Right, wrong and no draft tokens, with all sets of adapters at once, repeatedly over the same cache."""

    async def all_of_them():
        many, calls = ox.AsyncEngine(engine), []
        for p in PROMPTS:
            for i, lora in enumerate(SETS):
                oracle = Oracle([engine.tokenize(p) + texts_alone[p, i]], every=i + 2)
                drafts = {"draft": [oracle, "lookup"], "num_speculative": 2 * i + 1, "adaptive": False} if i else {}
                calls.append(many.generate(p, max_tokens=24, ignore_eos=True, sampler=GREEDY, lora=lora, **drafts))
        return await asyncio.gather(*calls)

    for _ in range(2):
        found = iter(asyncio.run(all_of_them()))
        for prompt in PROMPTS:
            for i in range(len(SETS)):
                assert next(found).token_ids == texts_alone[prompt, i]
    assert engine.metrics_snapshot().spec_accepted > 200


@pytest.mark.parametrize("kv_type", ["f32", "f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_logprobs_are_the_same_bits_with_drafts(kv_type, num_threads):
    wanted = {"max_tokens": 48, "seed": 3, "logprobs": 3, "prompt_logprobs": 1, "temperature": 0.9}
    with ox.load(num_threads=num_threads, kv_type=kv_type) as engine:
        plain = engine.generate(PROMPTS, **wanted)
        texts = [engine.tokenize(p) + one.token_ids for p, one in zip(PROMPTS, plain, strict=True)]
        for k, every in ((1, 0), (4, 5), (8, 3)):
            got = engine.generate(PROMPTS, **wanted, draft=Oracle(texts, every), num_speculative=k, adaptive=False)
            assert [(r.token_ids, r.logprobs, r.prompt_logprobs) for r in got] == [
                (r.token_ids, r.logprobs, r.prompt_logprobs) for r in plain
            ]


def test_drafts_in_conversations_and_with_the_prefix_cache():
    """The prefix cache has the same hits with and without drafts."""
    wanted = {"max_tokens": 40, "seed": 5, "ignore_eos": True}

    def turns(**drafts):
        with ox.load(num_threads=1) as engine:
            ids, texts = engine.tokenize("Once upon a time there was a little fox."), []
            for _ in range(4):
                got = engine.generate(ids, **wanted, **drafts)
                texts.append(got.token_ids)
                ids = ids + got.token_ids + engine.tokenize(" And then", add_special=False)
            s = engine.metrics_snapshot()
            return texts, s.prefix_hits

    plain = turns()
    assert turns(draft="lookup", num_speculative=8, adaptive=False) == plain
    assert plain[1] > 100
