"""The shipped draft: small, with the shipped model's vocabulary, and often accepted."""

import pytest

import oxillama as ox
from oxillama.config import SamplerConfig
from oxillama.core.loading import shipped_model
from oxillama.engine.draft_selection import Probe
from oxillama.speculative.synthesise import synthesise_draft

PROMPTS = ["Once upon a time", "A little fox", "There was a brave girl named Rosa", "One day"]


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def draft():
    with ox.load(ox.shipped_draft(), num_threads=1) as draft:
        yield draft


def test_the_shipped_draft_is_a_tenth_of_the_model():
    with ox.gguf.open(ox.shipped_draft()) as draft, ox.gguf.open(shipped_model()) as model:
        for size in (lambda t: t.n_values, lambda t: t.nbytes):
            assert sum(map(size, draft.tensors.values())) < 0.1 * sum(map(size, model.tensors.values()))
        mine, its = (
            {key: file.metadata[key] for key in file.metadata if key.startswith("tokenizer.")}
            for file in (draft, model)
        )
    assert mine == its


def test_the_shipped_draft_has_the_models_context(engine, draft):
    assert draft.context_size == engine.context_size
    assert draft.n_vocab == engine.n_vocab


@pytest.mark.parametrize(
    ("sampler", "share"),
    [
        (SamplerConfig.greedy(), 0.75),
        (SamplerConfig(temperature=0.8, top_k=0, top_p=1.0), 0.65),
        (SamplerConfig(), 0.65),
    ],
)
def test_most_tokens_of_the_shipped_draft_are_accepted(engine, draft, sampler, share):
    """Other drafts: one with a layer less has fewer tokens accepted, a random one none."""
    probe = Probe(engine, PROMPTS, sampler, 1)
    found = probe.acceptance(draft)
    assert found > share
    with ox.load(synthesise_draft(engine, None, [0, 3]), num_threads=1) as pruned:
        assert found > probe.acceptance(pruned)
