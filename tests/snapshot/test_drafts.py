"""Requests with drafts, saved in any of their steps: they resume, and draft, as if never stopped."""

import itertools
import json
import logging
from pathlib import Path

import numpy as np
import pytest

import oxillama as ox
from oxillama.drafts.draft import Proposal
from oxillama.drafts.grammar_draft import GrammarDraft
from oxillama.drafts.prompt_lookup import PromptLookup
from oxillama.errors import SnapshotDamagedError, SnapshotMismatchError
from oxillama.snapshot.format.writer import packed
from tests.fakes import core_of, requests_of, snapshots_of
from tests.processes import in_process
from tests.snapshot.contents import placed_state, unpacked
from tests.snapshot.models import load, path_of, tokens_of, told
from tests.speculative.drafts import Oracle

# Of the same few tokens over and over, so that looking them up finds something.
REPEATED = [5, 9, 11, 7, 5, 9, 11, 7, 5, 9]
BIASES = {5: 30.0, 9: 30.0, 11: 30.0}
OPTIONS = {"max_tokens": 14, "seed": 3, "ignore_eos": True, "temperature": 0.9, "logit_bias": BIASES}
OPTIONS |= {"repetition_penalty": 1.1, "adaptive": False}


def draft_model(**fields):
    return ox.DraftModel(path_of("llama"), num_threads=1, kv_type="q8_0", **fields)


class Watched:
    """A draft that notes its proposals."""

    def __init__(self, draft):
        self.draft, self.said = draft, []

    def bind(self, target):
        self.draft.bind(target)

    def propose(self, tasks):
        found = self.draft.propose(tasks)
        self.said += [(len(task.tokens), p.tokens) for task, p in zip(tasks, found, strict=True)]
        return found

    def forget(self, key):
        self.draft.forget(key)


DRAFTS = {"lookup": lambda: PromptLookup(3, 1), "model": draft_model, "grammar": GrammarDraft}


@pytest.fixture(scope="module")
def pair():
    with load("llama") as engine, load("llama", num_threads=2, kv_block_size=32) as other:
        yield engine, other


@pytest.mark.parametrize("acceptance", ["match", "rejection"])
@pytest.mark.parametrize("name", DRAFTS)
def test_a_speculated_request_saved_at_every_token_gives_the_same_text(pair, name, acceptance):
    """The draft tokens too are those of a run without a break, each requested once."""
    engine, other = pair
    draft, again = Watched(DRAFTS[name]()), Watched(DRAFTS[name]())
    options = OPTIONS | {"draft": draft, "acceptance": acceptance}
    if name == "grammar":
        del options["logit_bias"]
        options["regex"] = "(ab|cd)the same each time(e|f)again and again"
    whole = told(engine.stream(REPEATED, **options))
    wanted = draft.said[:]
    assert any(tokens for _, tokens in wanted)
    for k in range(len(whole) + 1):
        stream = engine.stream(REPEATED, **options)
        first = [next(stream) for _ in range(k)]
        saved = stream.snapshot()
        stream.close()
        again.said.clear()
        assert told(first + list(other.resume(saved, draft=again))) == whole, k
        assert again.said == wanted[len(wanted) - len(again.said) :]
        n_known = len(REPEATED) + sum(len(chunk.token_ids) for chunk in first)
        assert len(again.said) >= sum(n >= n_known + 5 for n, _ in wanted)


@pytest.mark.parametrize("acceptance", ["match", "rejection"])
@pytest.mark.parametrize("name", ["jamba", "gemma3"])
def test_speculated_requests_with_recurrent_states_and_windows_resume(name, acceptance):
    """Where a rejection costs a step without drafts, the resumed request has no drafts in that step either."""
    with load(name) as engine, load(name, num_threads=2) as other:
        prompt = tokens_of(engine, 30, seed=1)
        text = prompt + engine.generate(prompt, max_tokens=20, seed=3, ignore_eos=True, temperature=0.9).token_ids

        def oracle():
            return Oracle([text], every=3, n_vocab=engine.n_vocab)

        options = OPTIONS | {"draft": oracle(), "acceptance": acceptance}
        whole = told(engine.stream(prompt, **options))
        for k in range(len(whole)):
            stream = engine.stream(prompt, **options)
            first = [next(stream) for _ in range(k)]
            saved = stream.snapshot()
            stream.close()
            assert told(first + list(other.resume(saved, draft=oracle()))) == whole, k


@pytest.mark.parametrize("acceptance", ["match", "rejection"])
def test_a_request_with_unverified_draft_tokens_is_saved(pair, acceptance):
    """A round whose first half is done: the draft tokens exist, and no row is computed for them yet."""
    engine, other = pair
    with draft_model() as draft, draft_model() as twin:
        options = OPTIONS | {"draft": draft, "acceptance": acceptance}
        whole = told(engine.stream(REPEATED, **options))
        for k in range(1, 8):
            stream = engine.stream(REPEATED, **options)
            first = [next(stream) for _ in range(k)]
            snapshots_of(engine).between_steps(core_of(engine)._draft)
            request = requests_of(stream)[0]
            guessing = request.finish_reason is None and bool(request.sequence.draft_tokens)
            saved = stream.snapshot()
            assert told(first + list(other.resume(saved, draft=twin))) == whole
            assert told(first + list(stream)) == whole
            assert guessing or k > 4


@pytest.mark.sweep(1)
@pytest.mark.parametrize("acceptance", ["match", "rejection"])
@pytest.mark.parametrize("name", ["lookup", "model"])
def test_a_speculated_request_resumes_in_another_process(name, acceptance, tmp_path):
    draft = "lookup" if name == "lookup" else ox.DraftModel(ox.shipped_draft(), num_threads=1)
    given = "None" if name == "lookup" else "ox.DraftModel(ox.shipped_draft(), num_threads=1)"
    prompt = "The fox saw the cat. The cat saw the fox. The fox"
    with ox.load(num_threads=1, context_size=128) as engine:
        options = {"max_tokens": 40, "seed": 2, "num_speculative": 6, "regex": "(,? (the|a) (red )?(cat|fox) ran)+"}
        stream = engine.stream(prompt, draft=draft, acceptance=acceptance, adaptive=False, **options)
        for _ in range(5):
            next(stream)
        stream.snapshot(tmp_path / "text")
        found = in_process(
            f"""
            engine = ox.load(num_threads=2, context_size=128)
            chunks = list(engine.resume(sys.argv[1], draft={given}))
            print([token for c in chunks for token in c.token_ids])
            print(engine.metrics_snapshot().spec_drafted > 0)
            """,
            tmp_path / "text",
        ).splitlines()
        assert json.loads(found[0]) == [token for chunk in stream for token in chunk.token_ids]
        assert found[1] == "True"


def saved_text(engine, **options):
    stream = engine.stream(REPEATED, **OPTIONS | options)
    first = [next(stream) for _ in range(3)]
    saved, rest = stream.snapshot(), told(stream)
    assert first
    return saved, rest


def test_with_match_a_resumed_request_may_lose_or_replace_drafts(pair, caplog):
    """What has a name goes on, what has none is missed aloud, another one is as good."""
    engine, other = pair
    with draft_model() as draft, caplog.at_level(logging.WARNING, "oxillama"):
        saved, rest = saved_text(engine, draft=["lookup", draft, "grammar"], num_speculative=6)
        resumed = other.resume(saved)
        speculation = requests_of(resumed)[0].speculation
        assert [type(d) for d in speculation.drafts] == [PromptLookup, GrammarDraft]
        assert (speculation.k, speculation.acceptance, speculation.adaptive) == (6, "match", False)
        assert "not all of its drafts (lookup, model, grammar) can be made again: give draft=" in caplog.text
        assert told(resumed) == rest
        watched = Watched(draft)
        assert told(other.resume(saved, draft=watched)) == rest
        assert watched.said
        caplog.clear()
        saved, rest = saved_text(engine, draft="lookup")
        resumed = other.resume(saved)
        assert isinstance(requests_of(resumed)[0].speculation.drafts[0], PromptLookup)
        assert told(resumed) == rest
        saved, rest = saved_text(engine, draft=PromptLookup(5, 1))
        found = requests_of(other.resume(saved))[0].speculation.drafts[0]
        assert (found.min_ngram, found.max_ngram) == (1, 5)
        assert not caplog.records
        alone = {name: value for name, value in OPTIONS.items() if name != "adaptive"}
        stream = engine.stream(REPEATED, **alone)
        watched = Watched(draft)
        assert told(other.resume(stream.snapshot(), draft=watched)) == told(stream)  # saved without a draft
        assert watched.said


def test_rejection_needs_the_same_draft(pair):
    engine, other = pair
    with draft_model() as draft, ox.DraftModel(path_of("llama"), num_threads=1) as of_f16:
        saved, rest = saved_text(engine, draft=draft, acceptance="rejection")
        with pytest.raises(SnapshotMismatchError, match=r"the draft tokens of its drafts \(model\), of which some"):
            other.resume(saved)
        for wrong, message in (
            (of_f16, "its draft has config="),
            ("lookup", "its draft has kind='model', and the one that is given 'lookup'"),
            (Oracle([]), "its draft has kind='model', and the one that is given 'object'"),
            ([draft, "lookup"], "it was made with 1 drafts, and 2 are given"),
        ):
            with pytest.raises(SnapshotMismatchError, match=message):
                other.resume(saved, draft=wrong)
        with ox.SpeculativeDecoder(draft) as decoder:  # it says what its model says
            assert told(other.resume(saved, draft=decoder)) == rest
        with ox.DraftModel(engine, kv_type="q8_0") as shared:  # the same model, by other ways
            assert told(other.resume(saved, draft=shared)) == rest
        texts = [[5, 9, 11, 8, 8]]
        saved, rest = saved_text(engine, draft=PromptLookup(texts=texts), acceptance="rejection")
        with pytest.raises(SnapshotMismatchError, match="give draft="):
            other.resume(saved)
        with pytest.raises(SnapshotMismatchError, match="its draft has texts="):
            other.resume(saved, draft=PromptLookup())
        assert told(other.resume(saved, draft=PromptLookup(texts=texts))) == rest
        saved, rest = saved_text(engine, draft="lookup", acceptance="rejection")
        assert told(other.resume(saved)) == told(other.resume(saved, draft="lookup")) == rest


def test_a_draft_of_another_model_or_vocabulary(pair, tmp_path):
    engine, other = pair
    changed = bytearray(Path(path_of("llama")).read_bytes())
    changed[-100] ^= 1
    (tmp_path / "other.gguf").write_bytes(changed)
    with draft_model() as draft, ox.DraftModel(tmp_path / "other.gguf", kv_type="q8_0", num_threads=1) as changed_one:
        for acceptance in ("match", "rejection"):
            saved, rest = saved_text(engine, draft=draft, acceptance=acceptance)
            with ox.DraftModel(ox.shipped_draft(), num_threads=1) as wrong:
                message = "vocabulary" if acceptance == "match" else "its draft: .*is"
                with pytest.raises(SnapshotMismatchError, match=message):
                    other.resume(saved, draft=wrong)
            if acceptance == "match":
                assert told(other.resume(saved, draft=changed_one)) == rest
            else:
                with pytest.raises(SnapshotMismatchError, match=r"tail_hash|head_hash"):
                    other.resume(saved, draft=changed_one)
        with pytest.raises(ox.ConfigError, match="draft must be"):
            other.resume(saved, draft="nobody")
    engine.prefill([1, 2])
    with pytest.raises(ox.ConfigError, match="draft are for requests"):
        other.resume(engine.snapshot_bytes(), draft="lookup")


def test_computed_again_for_lack_of_room_the_text_is_the_same(pair):
    """The round is there, whichever step has a row for its first token."""
    engine = pair[0]
    prompt = tokens_of(engine, 60, seed=8)
    with load("llama", kv_budget=50_000, context_size=128) as small:
        stream = engine.stream(prompt, draft="lookup", acceptance="rejection", max_tokens=20, seed=3, ignore_eos=True)
        next(stream)
        saved = stream.snapshot()
        mine = small.stream(tokens_of(engine, 90, seed=9), max_tokens=30, seed=1, ignore_eos=True)
        next(mine)
        rest = told(stream)
        assert told(small.resume(saved)) == rest
        list(mine)
        assert told(small.resume(saved)) == rest


class Otherwise(Watched):
    """Proposes one token other than the draft that it hides behind."""

    def propose(self, tasks):
        found = super().propose(tasks)
        return [Proposal([(t + 1) % 300 + 3 for t in tokens], None) for tokens, _ in found]


@pytest.mark.parametrize("name", ["lookup", "model"])
def test_a_request_saved_in_the_middle_of_a_round_gives_the_same_text(pair, name):
    """Where steps have no room for all draft tokens, a round takes several of them, and its rest goes on."""
    engine, other = pair
    with load("llama", prefill_chunk_size=2) as narrow:
        options = OPTIONS | {"acceptance": "rejection", "num_speculative": 6, "repetition_penalty": 1.0}
        options |= {"temperature": 0.5, "top_k": 3}  # so that most draft tokens are accepted
        whole = told(engine.stream(REPEATED, draft=Watched(DRAFTS[name]()), **options))
        begun = []
        for k in range(OPTIONS["max_tokens"]):
            stream = narrow.stream(REPEATED, draft=Watched(DRAFTS[name]()), **options)
            first = list(itertools.islice(stream, k))
            saved = stream.snapshot()
            stream.close()
            begun.append((unpacked(saved).state["text"]["speculation"] or {}).get("n_begun"))
            assert told(first + list(other.resume(saved, draft=Watched(DRAFTS[name]())))) == whole
            if begun[-1]:
                with pytest.raises(ox.GenerateError, match="the draft Otherwise proposes other tokens than when"):
                    list(other.resume(saved, draft=renamed(Otherwise(DRAFTS[name]()))))
                check_damage(other, saved, name)
        assert any(begun)


def renamed(draft):
    """One that a description can't tell from `Watched`."""
    type(draft).__qualname__ = Watched.__qualname__
    return draft


def check_damage(engine, saved, name):
    """A place in a round that can't be is refused before anything runs."""
    parts = unpacked(saved)
    for value in (-1, 7, 10**30, "1", 1.5, [1], True, len(parts.tensors["tokens"].array) - len(REPEATED)):
        bad = packed(placed_state(parts, ("text", "speculation", "n_begun"), value))
        with pytest.raises(SnapshotDamagedError, match="n_begun"):
            engine.resume(bad, draft=Watched(DRAFTS[name]()))
    bad = packed(placed_state(parts, ("text", "speculation", "acceptance"), "match"))
    with pytest.raises(SnapshotDamagedError, match="n_begun"):
        engine.resume(bad, draft=Watched(DRAFTS[name]()))


def test_adaptive_rejection_of_old_files_resumes_without_adaptive(pair):
    engine, other = pair
    saved, rest = saved_text(engine, draft="lookup", acceptance="rejection")
    old = packed(placed_state(unpacked(saved), ("text", "speculation", "adaptive"), True))
    resumed = other.resume(old)
    assert requests_of(resumed)[0].speculation.adaptive is False
    assert told(resumed) == rest


VALUES = [
    None,
    -1,
    0,
    33,
    10**30,
    1.5,
    "",
    "x",
    "model",
    [],
    [1],
    [{}],
    {},
    True,
    "rejection",
    [{"kind": "lookup"}],
    [{"kind": "grammar"}] * 9,
]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("acceptance", ["match", "rejection"])
def test_damaged_draft_descriptions_are_refused(pair, acceptance):
    """Each value in turn is replaced: an error of ours, or a text."""
    engine, other = pair
    with draft_model() as draft:
        saved = unpacked(saved_text(engine, draft=["lookup", draft], acceptance=acceptance)[0])
        paths = [("text", "speculation"), *(("text", "speculation", n) for n in saved.state["text"]["speculation"])]
        paths += [("text", "speculation", "drafts", i, n) for i in (0, 1) for n in unpacked_draft(saved, i)]
        n_errors = 0
        for path in paths:
            for value in VALUES:
                for given in (None, ["lookup", draft]):
                    try:
                        list(other.resume(packed(placed_state(saved, path, value)), draft=given))
                    except ox.SnapshotError:
                        n_errors += 1
        assert n_errors > 60
        bad = placed_state(saved, ("text", "speculation", "num_speculative"), 33)
        with pytest.raises(SnapshotDamagedError, match="num_speculative must be an integer from 0 to 32, not 33"):
            other.resume(packed(bad))
        bad = placed_state(saved, ("sampler", "stages"), ["mirostat_v2"])
        if acceptance == "rejection":
            with pytest.raises(SnapshotDamagedError, match="mirostat"):
                other.resume(packed(bad), draft=["lookup", draft])


def unpacked_draft(saved, i):
    return saved.state["text"]["speculation"]["drafts"][i]


def test_bits_do_not_depend_on_other_users_of_the_draft(pair):
    """A long text that is new to a draft gets draft tokens at once, if its tokens depend on them: in chunks too."""
    engine, other = pair
    prompt = np.random.default_rng(1).integers(3, engine.n_vocab, 40).tolist()
    with draft_model() as draft, draft_model(prefill_chunk_size=32) as busy:
        options = OPTIONS | {"acceptance": "rejection"}
        stream = engine.stream(prompt, draft=draft, **options)
        first = [next(stream) for _ in range(3)]
        saved, rest = stream.snapshot(), told(stream)
        beside = other.stream(REPEATED, draft=busy, **options | {"max_tokens": 40})
        next(beside)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("oxillama.speculative.draft_core.CATCH_UP", 1)
            assert told(other.resume(saved, draft=busy)) == rest
        beside.close()
        assert first
