"""How many blocks and slots an engine gets."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import oxillama as ox
from oxillama.config import EngineConfig
from oxillama.core.loading import (
    DEFAULT_CONCURRENCY,
    FORWARD_PART,
    LEAST_STEP,
    MAX_SLOTS,
    REQUEST_SLOTS,
    choose_sizes,
    kept_bytes,
    step_tokens,
)
from oxillama.errors import ConfigError
from oxillama.kernels.batch import Span
from oxillama.kv_cache.arrays import block_bytes, slot_bytes
from oxillama.layer_state import KvShape, RecurrentShape
from oxillama.scheduling.scheduler import MAX_RUNNING
from tests.fakes import core_of
from tests.offload.paged import open_runner, path_of, tokens_of

KV, RECURRENT = (KvShape(2, 64, 64),), (RecurrentShape(1000),)
MODELS = {"attention": [KV] * 3, "recurrent": [RECURRENT] * 3, "hybrid": [RECURRENT, KV, (*KV, *RECURRENT)]}


def test_without_a_budget_there_is_room_for_four_requests():
    config = EngineConfig()
    assert choose_sizes(MODELS["attention"], 4096, config)[:2] == (4 * 256, 0)
    assert choose_sizes(MODELS["attention"], 100_000, config)[:2] == (4 * 6250, 0)
    assert choose_sizes(MODELS["hybrid"], 100, config)[:2] == (4 * 7, 4 * 5)
    # A context of a million costs a recurrent model nothing.
    assert choose_sizes(MODELS["recurrent"], 1 << 20, config)[:2] == (0, 4 * 5)
    assert choose_sizes([()], 100, config) == (0, 0, 0, 0)
    assert choose_sizes([()], 100, EngineConfig(kv_budget=1)) == (0, 0, 0, 0)
    assert (DEFAULT_CONCURRENCY, REQUEST_SLOTS) == (4, 5)


@given(context=st.integers(2, 1 << 20), window=st.sampled_from([0, 64]))
def test_short_contexts_have_room_for_as_many_as_run_at_once_in_no_more_tokens_than_ordinary_ones(context, window):
    states = [(KvShape(2, 64, 64, window),), *MODELS["attention"]]
    blocks = choose_sizes(states, context, EngineConfig()).n_blocks
    ordinary = choose_sizes(states, 4096, EngineConfig()).n_blocks
    n_requests, rest = divmod(blocks, -(-context // 16))
    assert rest == 0
    assert n_requests in range(4, MAX_RUNNING + 1)
    assert n_requests in (4, MAX_RUNNING) or n_requests * context <= ordinary * 16 < (n_requests + 1) * context


@pytest.mark.parametrize("states", MODELS.values(), ids=MODELS)
@given(budget=st.integers(1, 1 << 34), context=st.integers(2, 1 << 20))
@example(budget=34023, context=2)  # a hybrid's third slot would take what its one block needs
def test_a_budget_is_kept_and_nearly_used(states, budget, context):
    config = EngineConfig(kv_budget=budget)
    block, slot = block_bytes(states, 16, "f16"), slot_bytes(states)
    least = block + 2 * slot
    if budget < least:
        with pytest.raises(ConfigError, match=f"kv_budget must be at least {least} bytes.*not {budget}"):
            choose_sizes(states, context, config)
        return
    n_blocks, n_slots = choose_sizes(states, context, config)[:2]
    used = n_blocks * block + n_slots * slot
    assert used <= budget
    assert (n_blocks >= 1) == bool(block)
    assert 2 * bool(slot) <= n_slots <= MAX_SLOTS
    assert budget - used < max(block, slot) or (n_slots == MAX_SLOTS and not block)


def test_a_budget_is_divided_as_the_default_is():
    states = MODELS["hybrid"]
    n_blocks, n_slots = choose_sizes(states, 1000, EngineConfig())[:2]
    budget = n_blocks * block_bytes(states, 16, "f16") + n_slots * slot_bytes(states)
    assert choose_sizes(states, 1000, EngineConfig(kv_budget=budget))[:2] == (n_blocks, n_slots)
    small = choose_sizes(states, 1000, EngineConfig(kv_budget=budget // 2))
    assert small[1] == n_slots // 2
    assert 0 <= small[0] - n_blocks // 2 <= 1


def test_what_a_request_keeps():
    assert kept_bytes(MODELS["attention"]) == (3 * 2 * (64 + 64) * 2, 0)
    assert kept_bytes(MODELS["recurrent"]) == (0, 5 * 3 * 1008 * 4)  # rows of whole cache lines
    assert kept_bytes([()]) == (0, 0)


def test_steps_are_shorter_beside_weights_with_a_budget():
    """So that their memory is a small part of it, down to the fewest tokens."""
    with ox.load(num_threads=1) as engine:
        spec = engine.model_config
        prompt = [(7 * i) % spec.n_vocab for i in range(200)]
        engine.prefill(prompt)
        taken = engine.memory_bytes()["workspace"]
    assert step_tokens(spec, 512, None) == 512
    budget = next(n for n in range(1 << 20, 1 << 40, 1 << 16) if step_tokens(spec, 512, n) >= 200)
    assert budget // FORWARD_PART >= taken / 2  # memory that grew in pieces is up to twice what is needed
    assert step_tokens(spec, 512, 2 * budget) in range(2 * 200, 2 * 200 + 8)
    assert step_tokens(spec, 512, 1) == LEAST_STEP
    assert step_tokens(spec, 32, 1) == 32


@pytest.mark.parametrize("name", ["mixtral", "deepseek2", "olmoe", "mamba", "mamba2", "nemotron_h", "jamba", "gemma2",
                                  "qwen35", "qwen3next", "kimi-linear", "bailingmoe3", "hrm_text", "rwkv7",
                                  "glm-dsa"])  # fmt: skip
def test_memory_of_steps_of_every_kind_of_layer(name):
    """What is held is up to twice what is needed, since it grows so."""
    runner, n = open_runner(path_of(name), n_blocks=64), 1024
    spec = runner.model.spec
    slots = (-1, 0) if slot_bytes(spec.states) else None
    runner.forward([Span((tokens_of(name) * n)[:n], 0, list(range(64)), "last", slots)])
    budget = next(b for b in range(1 << 20, 1 << 40, 1 << 16) if step_tokens(spec, n, b) == n)
    assert 1 / 2 < runner.memory_bytes()["workspace"] / (budget // FORWARD_PART) < 2.1
    if spec.experts is not None:
        more = replace(spec, experts=replace(spec.experts, n_used=8 * spec.experts.n_used))
        assert step_tokens(more, n, budget) < 0.6 * n


def test_an_engine_whose_weights_all_stay_takes_whole_steps():
    with ox.load(num_threads=1, offload=ox.OffloadPolicy(automatic=True, reserve=0)) as engine:
        whole = core_of(engine).runner.pager.paged_bytes == 0
        assert (core_of(engine).scheduler.token_budget == 512) == whole


def test_an_engine_takes_such_steps():
    with ox.load(num_threads=1, offload=1 << 40) as engine:
        assert core_of(engine).scheduler.token_budget == 512
        most = engine.memory_bytes()["weights"]
    with ox.load(num_threads=1, offload=most // 2) as engine:
        expected = step_tokens(engine.model_config, 512, most // 2)
        assert core_of(engine).scheduler.token_budget == expected < 512
