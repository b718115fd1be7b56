"""A real model served in every way: each request gives the bits that it gives alone, and nothing leaks.

Random requests share beginnings, are cancelled and sent back in caches that are much too small, beside a session and a
dialogue that rewind into shared blocks.
"""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from oxillama.layer_state import largest_window
from oxillama.scheduling.block_manager import BlockManager
from tests.engine.serving import NAMES, QUICK, Serving, machine, model_of


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", NAMES)
def test_any_way_of_serving_gives_the_same_bits(name):
    run_state_machine_as_test(machine(name), settings=QUICK)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_storms_happen(name, monkeypatch):
    """What the machine is for happens in it: otherwise it would show nothing."""
    seen = {"preempted": 0, "hits": 0, "given back": 0}

    def teardown(self):
        Serving.teardown(self)
        scheduler = self.core.scheduler
        seen["preempted"] += scheduler.n_preempted
        seen["hits"] += scheduler.prefix.hit_tokens if scheduler.prefix else 0

    real = BlockManager.free_out_of_window

    def give_back(self, sequence):
        before = sequence.n_freed_blocks
        real(self, sequence)
        seen["given back"] += sequence.n_freed_blocks - before

    monkeypatch.setattr(BlockManager, "free_out_of_window", give_back)
    run_state_machine_as_test(machine(name, teardown=teardown), settings=settings(QUICK, max_examples=60))
    assert seen["preempted"] > 2 or name == "mamba"  # what needs no blocks is never sent back
    assert seen["hits"] > 100
    assert seen["given back"] > 10 or not largest_window(model_of(name).spec.states)
