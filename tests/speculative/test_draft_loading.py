"""Draft models of real files: their sources, and that they draft the same model's tokens."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import oxillama.gguf as gguf
from oxillama.config import EngineConfig, SamplerConfig
from oxillama.core.loading import EngineParts, choose_sizes, shipped_model
from oxillama.core.runner import Runner
from oxillama.drafts.draft import DraftTask
from oxillama.engine import Engine
from oxillama.errors import ConfigError, EngineClosedError, GenerateError, ModelNotFoundError, UnsupportedModelError
from oxillama.models import load_model
from oxillama.sampling import Sampler
from oxillama.speculative.draft_model import DraftModel
from tests.fakes import EOS, core_of, make_engine
from tests.models.letters import Letters
from tests.models.tiny import Shape, tiny
from tests.speculative.drafting import Text, guessed, make_draft

WARM = SamplerConfig(temperature=1.5, top_k=0, top_p=1.0, seed=5)
PROMPT = "Once upon a time"
CONTEXT = 200
DRAFT = Path(shipped_model()).with_name("default-draft.gguf")


@pytest.fixture(scope="module")
def engine():
    with Engine.load(context_size=256) as loaded:
        yield loaded


def text_of(engine, config, ids=None):
    ids = engine.tokenize(PROMPT) if ids is None else ids
    return Text(ids, config, row_of=lambda tokens: engine.forward_logits(tokens)[-1])


def check(engine, draft, ids=None, n=24, k=5):
    for config in (WARM, SamplerConfig.greedy()):
        text = text_of(engine, config, ids)
        expected = text_of(engine, config, ids)
        while len(expected.output) < n and not expected.ended:
            expected.step()
        assert guessed(draft, [text], n, k) == [expected.output]
        assert text.accepted == text.drafted > 0


@pytest.mark.parametrize("source", [None, shipped_model(), "bytes"])
def test_a_draft_model_of_a_file(engine, source):
    if source == "bytes":
        with open(shipped_model(), "rb") as file:
            source = file.read()
    with DraftModel(source, num_threads=1, context_size=128) as draft:
        draft.bind(engine)
        assert (draft.num_threads, draft.context_size) == (1, 128)
        assert draft.memory_bytes()["weights"] > 0
        check(engine, draft)


def test_a_draft_model_of_an_engine_shares_its_weights(engine):
    with DraftModel(engine) as draft:
        draft.bind(engine)
        assert core_of(draft).runner.model is core_of(engine).runner.model
        assert (draft.num_threads, draft.context_size) == (engine.num_threads, 256)
        check(engine, draft)
    with DraftModel(engine, num_threads=1, context_size=64, kv_type="f32", kv_block_size=32) as other:
        assert (other.num_threads, other.context_size) == (1, 64)
    assert engine.generate(PROMPT, max_tokens=2).token_ids


def test_settings_fixed_by_the_engine_are_refused(engine):
    for name, value in (("repack", False), ("tokenizer_path", "x"), ("overrides", {}), ("rope", {})):
        with pytest.raises(ConfigError, match=f"{name} can't be given with a loaded Engine"):
            DraftModel(engine, **{name: value})
    with pytest.raises(ConfigError, match="context_size must be at most the engine's 256"):
        DraftModel(engine, context_size=257)
    closed = Engine.load()
    closed.close()
    with pytest.raises(EngineClosedError):
        DraftModel(closed)


def test_bad_sources_are_refused():
    with pytest.raises(ModelNotFoundError):
        DraftModel("/no/such/file.gguf")
    with pytest.raises(
        TypeError, match=r"DraftModel\(\) got an unexpected keyword argument 'threads'; did you mean 'num_threads'"
    ):
        DraftModel(None, threads=2)
    with pytest.raises(ConfigError, match="model_path must be a path"):
        DraftModel(7)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ["llama", "mamba", "jamba", "lfm2", "llama-window", "gemma2"])
def test_models_of_every_kind_can_be_drafts(name, tmp_path):
    """Rewound states, windows and blocks of real models give the bits of a whole computation."""
    with gguf.open(tiny(name, tmp_path, Shape(window=20))) as file:
        model = load_model(file, num_threads=1)
    config = EngineConfig()
    sizes = choose_sizes(model.spec.states, CONTEXT, config)
    runner = Runner(model, num_threads=1, n_blocks=sizes.n_blocks, n_slots=sizes.n_slots, n_windowed=sizes.n_windowed)
    parts = EngineParts(
        runner, Letters(), model.spec, CONTEXT, sizes.n_blocks, sizes.n_slots, n_windowed=sizes.n_windowed,
        window=sizes.window,
    )  # fmt: skip
    engine = Engine(config, parts=parts)
    draft = DraftModel(engine)
    core_of(draft).scheduler.debug = True
    ids = [3 + (7 * i) % 25 for i in range(70)]
    check(engine, draft, ids, n=30)
    # Every other time the draft tokens are those of another generator, and mostly rejected.
    text = text_of(engine, WARM, ids)
    for i in range(12):
        other = Sampler(replace(WARM, seed=6), prompt=text.tokens)
        (proposal,) = draft.propose([DraftTask(text.key, text.tokens, 4, text.sampler if i % 2 else other)])
        text.step(proposal.tokens)
        known = core_of(draft).sequences.find(text.key).sequence
        first = text_of(engine, SamplerConfig.greedy(), known.tokens[: known.n_computed])
        (again,) = draft.propose([DraftTask(text.key, list(first.tokens), 1, first.sampler)])
        first.step()
        assert again.tokens == ([EOS] if first.ended else first.tokens[-1:])
    assert 0 < text.accepted < text.drafted


def test_encoders_are_refused():
    with pytest.raises(GenerateError, match="architecture fake reads texts whole"):
        DraftModel(make_engine(causal=False))
    with pytest.raises(UnsupportedModelError, match=r"architecture fake reads texts whole.*can't be a draft"):
        make_draft(causal=False)


def test_an_engine_without_a_model_has_none_to_share():
    with pytest.raises(ConfigError, match="no model that another one could share"):
        DraftModel(make_engine())


def test_an_engine_as_a_draft():
    """Its model drafts; the same draft each time, until the engine is closed."""
    target, small = Engine.load(num_threads=1), Engine.load(DRAFT, num_threads=1)
    expected = target.generate(PROMPT, max_tokens=20, seed=1).token_ids
    for draft in (small, [small, "lookup"], target):
        got = target.generate(PROMPT, max_tokens=20, seed=1, draft=draft, adaptive=False)
        assert got.token_ids == expected
        assert got.speculation.accepted > 0
    assert small.as_draft() is small.as_draft()
    own = small.as_draft()
    small.close()
    assert own.closed
    for draft in (small, own):
        with pytest.raises(EngineClosedError):
            target.generate(PROMPT, max_tokens=20, draft=draft, adaptive=False)
    assert target.generate(PROMPT, max_tokens=20, seed=1).token_ids == expected


def test_threads_get_one_draft_of_an_engine():
    with Engine.load(num_threads=1) as engine, ThreadPoolExecutor(8) as pool:
        assert len({id(draft) for draft in pool.map(lambda i: engine.as_draft(), range(16))}) == 1
