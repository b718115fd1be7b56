"""Adapters of the shipped model, sets of them, and the texts that these give."""

import contextlib

import oxillama as ox
from oxillama.core.loading import shipped_model
from tests.lora.files import linear_shapes, random_factors, write_adapter

PROMPTS = ["Once upon a time", "The little fox", "One day a girl", "There was a tree"]
GREEDY = ox.SamplerConfig.greedy()
SETS = [None, [("a", 0.8)], ["b"], [("a", 0.5), ("b", -0.5)]]


def text(engine, prompt, lora, n=24, **options):
    return engine.generate(prompt, max_tokens=n, ignore_eos=True, sampler=GREEDY, lora=lora, **options).token_ids


def write_two(folder):
    """Two adapters of every matrix of the shipped model, small enough that it still writes text."""
    shapes = linear_shapes(shipped_model())
    with ox.gguf.open(shipped_model()) as file:
        arch = file.metadata.arch
    return [write_adapter(folder / f"{i}.gguf", arch, random_factors(shapes, 4, i), alpha=0.4) for i in range(2)]


@contextlib.contextmanager
def loaded(adapters, **options):
    """An engine with these adapters, by the names a, b."""
    with ox.load(**options) as engine:
        for name, path in zip("ab", adapters, strict=False):
            engine.load_lora(name, path)
        yield engine


def texts_alone(adapters):
    """Tokens of each prompt under each set, each computed by an engine that serves nothing else."""
    found = {}
    for i, lora in enumerate(SETS):
        for prompt in PROMPTS:
            with loaded(adapters if lora else (), num_threads=1, prefix_cache=False) as engine:
                found[prompt, i] = text(engine, prompt, lora)
    return found
