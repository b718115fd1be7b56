"""Many threads that call everything at once, compared with one thread that calls the same alone."""

import random
import sys
import threading
import time
from contextlib import ExitStack
from types import SimpleNamespace

from tests.threads.calls import every_call


def alone(calls, numbers=4):
    """{(name, number): what the call gives}"""
    return {(name, i): call(i) for name, call in calls.items() for i in range(numbers)}


def together(calls, expected, *, n_threads, seconds=None, rounds=None, seed=0, switch=1e-6):
    """Calls in random order in every thread, the interpreter switching between them all the time.

    Returns how many there were, and what went wrong.

    rounds: of each thread through all calls; or for so many seconds.
    """
    wrong, done, stop = [], [0] * n_threads, time.monotonic() + (seconds or 1 << 30)
    before = sys.getswitchinterval()
    start = threading.Barrier(n_threads)

    def work(thread):
        order = random.Random(f"{seed} {thread}")
        start.wait()
        for _ in range(rounds or 1 << 30):
            for key in order.sample(sorted(expected), len(expected)):
                if time.monotonic() > stop or wrong:
                    return
                try:
                    if calls[key[0]](key[1]) != expected[key]:
                        wrong.append((key, "another result"))
                except Exception as error:
                    wrong.append((key, repr(error)))
                done[thread] += 1

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(n_threads)]
    try:
        sys.setswitchinterval(switch)
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(before)
    return sum(done), wrong


def engines(folder):
    """(name, engine, its calls): the shipped model in memory, and paged, with two adapters."""
    import oxillama as ox
    from oxillama.core.loading import shipped_model
    from tests.lora.files import linear_shapes, random_factors, write_adapter
    from tests.models.bert import BERT, HEADS, changed, with_head
    from tests.models.denoiser import denoiser

    others = changed(with_head(folder, head=HEADS["output"]), BERT), denoiser(folder)
    shapes = linear_shapes(shipped_model())
    with ox.gguf.open(shipped_model()) as file:
        arch = file.metadata.arch
    paths = [write_adapter(folder / f"{i}.gguf", arch, random_factors(shapes, 2, i), alpha=0.4) for i in range(2)]
    for name, fields in (("in memory", {}), ("paged", {"offload": 1 << 21}), ("raw", {"repack": False})):
        with ox.load(num_threads=2, context_size=256, kv_budget=1 << 24, **fields) as engine, ExitStack() as closing:
            for letter, path in zip("ab", paths, strict=True):
                engine.load_lora(letter, path)
            yield name, engine, every_call(engine, paths[0], beside(engine, paths, *others, closing))


def beside(engine, paths, ranker, denoiser, closing):
    """What all threads use with an engine: drafts, engines that rank and denoise, and others of the same model.

    whole: one whose weights can be shared. pushing: one on which adapters are pushed, and that has tokens of
    fill-in-the-middle.
    """
    import oxillama as ox
    from oxillama.core.loading import shipped_draft

    def own(made):
        return closing.enter_context(made)

    whole = engine if engine.config.offload is None else own(ox.load(num_threads=1, kv_budget=1 << 24))
    draft = own(ox.DraftModel(shipped_draft(), num_threads=1))
    marks = {f"tokenizer.ggml.fim_{name}_token_id": i for i, name in enumerate(("pre", "suf", "mid"), 50)}
    pushing = own(ox.load(num_threads=1, context_size=256, kv_budget=1 << 24, overrides=marks))
    for letter, path in zip("ab", paths, strict=True):
        pushing.load_lora(letter, path)
    return SimpleNamespace(
        whole=whole, draft=draft, pushing=pushing, ranker=own(ox.load(ranker, num_threads=1)),
        denoiser=own(ox.load(denoiser, num_threads=1)),
        decoder=own(ox.SpeculativeDecoder(shipped_draft(), num_threads=1)),
        speculative=own(ox.SpeculativeEngine(engine, shipped_draft(), num_speculative=3)),
    )  # fmt: skip
