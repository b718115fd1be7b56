"""Objects that threads share beside the owned cache: weak sets, lazy values, opened objects, adapters and caches."""

import re
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import oxillama
from oxillama._util import sharing
from oxillama._util.lazy import lazy
from oxillama._util.pickling import OpenedOnce
from oxillama._util.sharing import members
from oxillama.compat.c_vocab import llama_model_get_vocab
from oxillama.compat.llama_cache import LlamaRAMCache
from oxillama.core.draft_scheduler import BoundDrafts
from oxillama.drafts.draft import Target
from oxillama.grammar import Grammar, Vocabulary
from oxillama.lora.registry import LoraRegistry
from tests.other_threads import switching


class One:
    nbytes = 1


def errors_of(reads, writes, seconds=0.6):
    """Errors of `reads` in a loop, while two threads call writes(number, round)."""
    errors, until = [], time.monotonic() + seconds

    def run(act):
        i = 0
        try:
            while time.monotonic() < until and not errors:
                act(i)
                i += 1
        except BaseException as error:
            errors.append(error)

    acts = [lambda i: reads(), *(lambda i, number=number: writes(number, i) for number in range(2))]
    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    with switching():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return errors


def test_members_of_a_weak_set_that_others_add_to_and_free_from():
    shared, kept = weakref.WeakSet(), [[], []]

    def write(number, i):
        kept[number].append(One())
        shared.add(kept[number][-1])
        if i % 5 == 4:
            kept[number].clear()

    assert errors_of(lambda: members(shared), write) == []


def test_adapters_are_listed_while_others_are_loaded():
    registry = LoraRegistry(None, dict)
    registry._named.update({f"always {i}": ("lora", None) for i in range(50)})
    bound = {}

    def write(number, i):
        names = [f"{number} {k}" for k in range(20)]
        for name in names:
            bound[name] = registry._bound[name] = One()
            registry._named[name] = "lora", None
        for name in names:
            del registry._named[name], bound[name]

    assert errors_of(lambda: (registry.named, registry.nbytes), write) == []


def test_states_of_llama_cpp_are_kept_for_several_threads():
    class State:
        llama_state_size = 10

    cache = LlamaRAMCache(200)

    def read():
        if (1, 2) in cache:
            with suppress(KeyError):  # given up meanwhile
                assert cache[1, 2].llama_state_size == 10

    def write(number, i):
        cache[1, 2, number, i % 30] = State()

    assert errors_of(read, write) == []
    assert cache.cache_size <= 220


def both(act):
    """What two threads get of act(), of which each is in the middle while the other begins."""
    found = [None, None]

    def run(number):
        found[number] = act()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_threads_that_compute_a_lazy_value_at_once_get_the_same():
    barrier = threading.Barrier(2, timeout=120)

    class Slow:
        @lazy
        def value(self):
            barrier.wait()
            return object()

    slow = Slow()
    one, other = both(lambda: slow.value)
    assert one is other is slow.value


def test_threads_that_ask_for_a_named_draft_at_once_get_the_same():
    drafts = BoundDrafts(Target(None, 10, 10, False))
    with switching():
        found = [both(lambda name=name: drafts._made(name)) for name in ("lookup", "grammar")]
    assert all(one is other for one, other in found)


def test_a_vocabulary_has_one_address(model):
    with switching():
        one, other = both(lambda: llama_model_get_vocab(model))
    assert one == other


@pytest.fixture
def model():
    from oxillama.core.loading import shipped_model
    from oxillama.tokenizer import Tokenizer

    class Model:
        vocabulary = Tokenizer.from_gguf(shipped_model())

    return Model()


# ---- locks are not held during long work


def test_what_is_opened_keeps_others_from_nothing():
    opened, begun, go_on = OpenedOnce(), threading.Event(), threading.Event()
    made = []

    def slow():
        begun.set()
        assert go_on.wait(60)
        made.append(One())
        return made[-1]

    found = []
    threads = [threading.Thread(target=lambda: found.append(opened.get("slow", slow))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    quick = One()
    assert opened.get("quick", lambda: quick) is quick
    opened.register("other", quick)
    go_on.set()
    for thread in threads:
        thread.join()
    assert len(made) == 1  # of those who want the same, one opens it
    assert found == made * 2
    assert not opened._opening


def test_the_opening_that_fails_is_tried_by_the_next():
    opened, one = OpenedOnce(), One()

    def fails():
        raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        opened.get("key", fails)
    assert opened.get("key", lambda: one) is one
    assert opened.get("key", fails) is one


def test_who_asks_for_the_size_of_a_grammar_does_not_wait_for_its_masks():
    grammar = Grammar.from_regex("[a-z]{1,40}")
    vocabulary = Vocabulary([bytes([i]) for i in range(97, 123)], [])
    small = grammar.n_bytes()
    state, held, go_on = grammar.state(vocabulary), threading.Event(), threading.Event()
    state.mask(np.empty(vocabulary.n_words, np.uint32))

    def hold():
        with grammar._lock:
            held.set()
            assert go_on.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    assert grammar.n_bytes() == small  # that of the last call
    go_on.set()
    thread.join()
    assert grammar.n_bytes() > small


def test_each_module_with_a_lock_is_in_the_list_of_locks():
    package = Path(oxillama.__file__).parent
    found = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"threading\.R?Lock\(\)", path.read_text())
    ]
    assert len(found) > 8
    assert [name for name in found if f"`{name}`" not in sharing.__doc__] == []
