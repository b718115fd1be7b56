"""Selection among models: the measurements, the choice, and the reasons for refusals."""

import itertools

import numpy as np
import pytest

import oxillama as ox
import oxillama.gguf as gguf
from oxillama.config import SamplerConfig
from oxillama.engine import draft_selection as probes
from oxillama.engine import draft_selection as select
from oxillama.engine.draft_selection import Probe, expected_speedup, select_draft, step_seconds
from oxillama.errors import ConfigError, GenerateError, GGUFError, UnsupportedModelError
from oxillama.speculative.synthesise import synthesise_draft
from tests.models.tiny import tiny

GREEDY = SamplerConfig.greedy()
PROMPTS = ["Once upon a time", "What is 3 + 4?"]


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def drafts(engine):
    """From good to bad, and each smaller than the one before."""
    return [synthesise_draft(engine, type, layers) for type, layers in (("Q4_K", None), ("Q2_K", None), ("Q2_K", 1))]


@pytest.fixture
def costs(monkeypatch):
    """Instead of the clock's: a step of the target costs 8 and a quarter for each further row, one of a draft 1."""

    def seconds(engine, n_rows):
        return 8 + (n_rows - 1) / 4 if engine.model_config.name == "oxillama default" else 1.0

    monkeypatch.setattr(probes, "step_seconds", seconds)
    monkeypatch.setattr(select, "step_seconds", seconds)


def changed(source, metadata=None, tensors=None):
    """The bytes of a file with other metadata or tensors."""
    with gguf.open(source) as file:
        writer = gguf.GGUFWriter(None)
        writer.add_metadata(file.metadata.replaced(metadata or {}))
        for name, info in file.tensors.items():
            writer.add_tensor(name, (tensors or {}).get(name, info))
        return writer.to_bytes()


@pytest.mark.parametrize("a", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_formula_by_counting_outcomes(a, k):
    """A round gives one token more than the draft tokens accepted before the first rejected one."""
    tokens = 0.0
    for right in itertools.product((True, False), repeat=k):
        chance = np.prod([a if r else 1 - a for r in right])
        tokens += chance * (1 + sum(1 for _ in itertools.takewhile(bool, right)))
    assert expected_speedup(a, k, 2.0, 3.0, 0.5) == pytest.approx(tokens / (0.5 * k + 3.0) / (1 / 2.0))


@pytest.mark.parametrize("sampler", [GREEDY, SamplerConfig(), SamplerConfig(temperature=1.5, top_k=0, top_p=1.0)])
def test_a_model_accepts_itself(engine, sampler):
    assert Probe(engine, PROMPTS, sampler, 4).acceptance(engine) == 1.0


def test_greedy_acceptance_is_how_often_first_choices_agree(engine, drafts):
    probe = Probe(engine, PROMPTS, GREEDY, 1)
    with ox.load(drafts[1], num_threads=1) as draft:
        hits = []
        for prompt in PROMPTS:
            text = engine.generate(prompt, max_tokens=probes.MAX_TOKENS, sampler=GREEDY).token_ids
            ids = engine.tokenize(prompt)
            rows = draft.forward_logits(ids + text)[len(ids) - 1 : -1]
            hits += (rows.argmax(axis=1) == text).tolist()
        assert probe.acceptance(draft) == np.mean(hits)
        assert 0.3 < np.mean(hits) < 1.0


def test_better_drafts_have_a_higher_acceptance(engine, drafts):
    probe, found = Probe(engine, PROMPTS, SamplerConfig(), 1), []
    for source in drafts:
        with ox.load(source, num_threads=1) as draft:
            found.append(probe.acceptance(draft))
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]


def test_the_best_is_chosen_and_the_others_have_reasons(engine, drafts, costs):
    found = select_draft(engine, drafts[::-1], prompts=PROMPTS)
    assert found.choice is drafts[0]
    best = found.candidates[-1]
    assert (best.reason, best.speedup, best.acceptance) == ("", found.speedup, found.acceptance)
    k, a = found.num_speculative, found.acceptance
    assert found.speedup == pytest.approx(expected_speedup(a, k, 8.0, 8.0 + k / 4, 1.0))
    assert found.speedup > 2
    assert 2 <= k <= 8
    assert [source for source, _ in found.refused] == [drafts[2], drafts[1]]
    assert all("another has" in reason or "slower than without" in reason for _, reason in found.refused)
    few = select_draft(engine, drafts, prompts=PROMPTS, num_speculative=1)
    assert few.num_speculative == 1
    assert few.speedup < found.speedup


def test_a_draft_without_a_speedup_is_not_chosen(engine, drafts, monkeypatch):
    for module in (probes, select):
        monkeypatch.setattr(module, "step_seconds", lambda engine, n_rows: float(n_rows))
    found = select_draft(engine, drafts, prompts=PROMPTS)
    assert (found.choice, found.speedup, found.num_speculative, found.acceptance) == (None, 1.0, 0, 0.0)
    assert all("slower than without a draft" in reason for _, reason in found.refused)
    assert len(found.refused) == 3


def test_step_seconds_are_measured_and_interpolated(engine):
    assert 0 < step_seconds(engine, 1) < step_seconds(engine, 200)


def refusals(tmp_path, draft):
    """Candidates that can't be used, each with words of its reason."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(draft[: len(draft) // 2])
    with gguf.open(draft) as file:
        tokens = list(file.metadata["tokenizer.ggml.tokens"])
        output_norm = file.tensors["output_norm.weight"].dequantize()
    tokens[700], tokens[701] = tokens[701], tokens[700]
    return [
        (tmp_path / "none.gguf", "there is no such file"),
        (tmp_path, "this is a directory"),
        (broken, "broken.gguf"),
        (b"", "the file is empty"),
        (b"GGUF" + bytes([255]) * 80, "GGUF version"),
        (None, "no less than the target's"),
        (tiny("bert", tmp_path), "there is nothing to draft for it"),
        (tiny("llama", tmp_path), "holds no tokenizer"),
        (changed(draft, {"tokenizer.ggml.tokens": tokens}), "token 700 is"),
        (changed(draft, {"general.architecture": "nothing"}), "architecture 'nothing' is not supported"),
        (changed(draft, {"llama.block_count": 3}), "no use for"),
        (changed(draft, None, {"output_norm.weight": output_norm * np.nan}), "token 0 is nan"),
    ]


def test_hostile_and_unfit_candidates_are_refused_with_reasons(engine, drafts, tmp_path, costs):
    cases = refusals(tmp_path, drafts[1])
    sources = [engine if source is None else source for source, _ in cases]
    found = select_draft(engine, [*sources, drafts[0]], prompts=PROMPTS)
    assert found.choice is drafts[0]
    for (source, reason), (_, words) in zip(found.refused, cases, strict=True):
        assert words in reason, (str(source)[:40], reason)
    assert engine.generate("Once", max_tokens=3, temperature=0.0).token_ids


def test_candidates_may_be_files_and_engines(tmp_path, drafts, costs):
    target, path = tmp_path / "target.gguf", tmp_path / "draft.gguf"
    with ox.load(num_threads=1) as engine, ox.load(drafts[0], num_threads=1) as draft:
        with gguf.open(select.opened(engine).__enter__().path) as file:
            gguf.copy(file, target)
        path.write_bytes(drafts[0])
        found = [
            select_draft(t, [d], prompts=PROMPTS) for t, d in ((engine, draft), (target, path), (engine, str(path)))
        ]
        assert len({(f.acceptance, f.speedup) for f in found}) == 1
        assert found[0].choice is draft
        assert found[1].choice is path
        assert draft.generate("Once", max_tokens=1).token_ids  # it stays open


def test_bad_arguments(engine, drafts, tmp_path):
    with pytest.raises(ConfigError, match="candidates must be a list of models, not one bytes"):
        select_draft(engine, drafts[0])
    with pytest.raises(ConfigError, match=r"candidates\[1\] must be"):
        select_draft(engine, [drafts[0], 3])
    with pytest.raises(ConfigError, match="num_speculative must be"):
        select_draft(engine, drafts, num_speculative=0)
    with pytest.raises(ConfigError, match="sampler must be"):
        select_draft(engine, drafts, sampler={"temperature": 1})
    for prompts in ("a text", [], None):
        with pytest.raises(ConfigError, match="prompts must be a list of at least one text"):
            select_draft(engine, drafts, prompts=prompts)
    with pytest.raises(ConfigError, match=r"prompts\[1\] must be of type str"):
        select_draft(engine, drafts, prompts=["a", 3])
    with pytest.raises(GGUFError):
        select_draft(b"GGUF", drafts)
    with pytest.raises(UnsupportedModelError, match="makes embeddings"):
        select_draft(tiny("bert", tmp_path), drafts)
    assert select_draft(engine, [], prompts=PROMPTS).candidates == ()


def test_a_probe_without_text_is_an_error(engine, drafts):
    with pytest.raises(GenerateError, match="completes the probe's prompts with no token"):
        Probe(engine, [], GREEDY, 1).acceptance(engine)
