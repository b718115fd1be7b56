"""Engines in tasks and actors of Ray: they answer as where they were loaded, with the threads that Ray gave them."""

import os

import pytest

import oxillama as ox

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

SAME = {"max_tokens": 8, "seed": 1, "ignore_eos": True}
CORES = len(os.sched_getaffinity(0))


def answer(engine, prompt="The cat"):
    return engine.generate(prompt, **SAME).token_ids, engine.num_threads, os.getpid()


class Holder:
    def __init__(self, engine):
        self.engine = engine

    def answer(self, prompt="The cat"):
        return answer(self.engine, prompt)


@pytest.fixture(scope="module")
def engine():
    with ox.load() as engine:
        engine.generate("a", max_tokens=2)
        yield engine


def test_tasks_open_an_engine_once_in_a_process(ray, engine):
    task, kept = ray.remote(answer), ray.put(engine)
    prompts = ["The cat", "Once", "A", "The", "Hello", "a b c"]
    found = ray.get([task.remote(kept, prompt) for prompt in prompts], timeout=300)
    assert [tokens for tokens, _, _ in found] == [answer(engine, prompt)[0] for prompt in prompts]
    assert os.getpid() not in {pid for _, _, pid in found}


@pytest.mark.parametrize(
    ("options", "n"), [({}, 1), ({"num_cpus": 1}, 1), ({"num_cpus": 2}, 2), ({"num_cpus": 0.5}, 1)]
)
def test_an_actor_computes_with_the_cpus_that_it_asked_for(ray, engine, options, n):
    """Ray sets OMP_NUM_THREADS for it; without num_cpus, to one."""
    actor = ray.remote(Holder).options(**options).remote(engine)
    tokens, n_threads, _ = ray.get(actor.answer.remote(), timeout=300)
    ray.kill(actor)
    assert tokens == answer(engine)[0]
    assert n_threads == min(n, CORES)


def test_an_engine_with_a_number_of_threads_keeps_it(ray):
    with ox.load(num_threads=2) as engine:
        actor = ray.remote(Holder).options(num_cpus=1).remote(engine)
        assert ray.get(actor.answer.remote(), timeout=300)[1] == 2
        ray.kill(actor)


def test_what_belongs_to_a_process_says_so(ray, engine):
    with pytest.raises(TypeError, match="CancelToken objects can't be pickled"):
        ray.put(ox.CancelToken())
