"""Snapshots of a model and its draft as one, in version 2 and version 1."""

import contextlib
import json
import random
from pathlib import Path

import numpy as np
import pytest

import oxillama as ox
from oxillama.drafts.grammar_draft import GrammarDraft
from oxillama.drafts.prompt_lookup import PromptLookup
from oxillama.errors import (
    SnapshotDamagedError,
    SnapshotError,
    SnapshotFileError,
    SnapshotFormatError,
    SnapshotMismatchError,
)
from oxillama.snapshot import snapshot_info, speculative
from oxillama.snapshot.format.reader import ArrayRows, SnapshotReader
from oxillama.snapshot.format.source import MemorySource
from oxillama.snapshot.format.v1 import EngineV1, KvV1, SpeculativeV1
from oxillama.snapshot.format.writer import packed
from tests.fakes import core_of, requests_of, sequence_of, session_of, snapshots_of
from tests.processes import in_process
from tests.snapshot.contents import paths, placed_state, sections_of, unpacked
from tests.snapshot.models import load, path_of, same, tokens_of, told
from tests.snapshot.version1 import SPECULATIVE, same_fields
from tests.speculative.drafts import Oracle

MODEL = path_of("llama")
SpeculativeEngine = ox.SpeculativeEngine
OPTIONS = {
    "max_tokens": 16,
    "ignore_eos": True,
    "temperature": 0.9,
    "repetition_penalty": 1.1,
    "logit_bias": {5: 30.0, 9: 30.0, 11: 30.0},
}


@pytest.fixture(scope="module")
def engine():
    with load("llama") as engine:
        yield engine


@pytest.fixture(scope="module")
def spec(engine):
    with SpeculativeEngine(engine, MODEL, 6, 3, acceptance="rejection") as spec:
        yield spec


@pytest.fixture
def filled(spec):
    spec.engine.reset()
    spec.engine.prefill(tokens_of(spec.engine, 20))
    return spec


@pytest.mark.parametrize("acceptance", ["match", "rejection"])
def test_a_speculative_engine_is_restored_in_another_process(acceptance, tmp_path):
    with SpeculativeEngine(
        None, ox.shipped_draft(), 5, 7, acceptance=acceptance, adaptive=False, context_size=128, num_threads=1
    ) as spec:
        spec.engine.prefill(spec.engine.tokenize("Once upon a time"))
        stream = spec.stream("The little fox", max_tokens=30)
        first = [next(stream) for _ in range(6)]
        stream.snapshot(tmp_path / "text")
        spec.snapshot(tmp_path / "engine")
        code = """
        with ox.SpeculativeEngine.restore(sys.argv[1], num_threads=2) as spec:
            print(spec.engine.forward_one(7).tobytes().hex())
            print([token for c in spec.resume(sys.argv[2]) for token in c.token_ids])
            print(spec.stats.drafted > 0)
            print(spec.generate("The little fox", max_tokens=30).token_ids)
        """
        found = in_process(code, tmp_path / "engine", tmp_path / "text").splitlines()
        assert found[0] == spec.engine.forward_one(7).tobytes().hex()
        rest = [token for chunk in stream for token in chunk.token_ids]
        assert json.loads(found[1]) == rest
        assert found[2] == "True"
        assert json.loads(found[3]) == [token for chunk in first for token in chunk.token_ids] + rest


def test_engine_draft_and_statistics_are_restored(filled):
    before = filled.generate([1, 5, 9, 5, 9], **OPTIONS)
    with SpeculativeEngine.restore_bytes(filled.snapshot_bytes(), num_threads=1) as spec:
        assert (spec.options, spec.seed, spec.stats) == (filled.options, 3, filled.stats)
        assert spec.options == {"num_speculative": 6, "acceptance": "rejection", "adaptive": False}
        assert spec.stats.drafted >= before.speculation.drafted > 0
        assert session_of(spec.engine).tokens == session_of(filled.engine).tokens
        assert same(spec.engine.logits, filled.engine.logits)
        assert spec.generate([1, 5, 9, 5, 9], **OPTIONS).token_ids == before.token_ids
        again = spec.stats
        assert again.drafted == filled.stats.drafted + before.speculation.drafted
        row = filled.engine.forward_one(8)
        assert same(spec.engine.forward_one(8), row)
        restored, draft = spec.engine, spec.draft
    assert restored.closed
    assert draft.closed
    assert not filled.engine.closed


def test_an_engine_saved_in_the_middle_of_a_round_gives_the_same_text(filled):
    """At each chunk, with draft tokens not computed yet; a draft of another process proposes the same."""
    whole = told(filled.stream([5, 9, 11, 5, 9], **OPTIONS))
    with SpeculativeEngine.restore_bytes(filled.snapshot_bytes(), num_threads=1) as other:
        for k in range(len(whole) + 1):
            stream = filled.stream([5, 9, 11, 5, 9], **OPTIONS)
            first = [next(stream) for _ in range(k)]
            snapshots_of(filled.engine).between_steps(core_of(filled.engine)._draft)
            assert told(first + list(other.resume(stream.snapshot()))) == whole
            assert told(first + list(stream)) == whole
        with other.resume(filled.engine.snapshot_bytes()) as session:  # sessions have no draft
            assert session.tokens == session_of(filled.engine).tokens
        plain = filled.engine.stream([5, 9, 11, 5, 9], seed=1, **OPTIONS)
        resumed = other.resume(plain.snapshot())  # saved without a draft: it stays without one
        speculation = requests_of(resumed)[0].speculation
        assert (speculation.k, speculation.acceptance) == (6, "match")
        assert told(resumed) == told(plain)


def test_compressed_and_files(filled, tmp_path):
    pytest.importorskip("zstandard")
    filled.snapshot(tmp_path / "small", compress=True)
    filled.snapshot(tmp_path / "large")
    assert (tmp_path / "large").read_bytes() == filled.snapshot_bytes()
    with SpeculativeEngine.restore(tmp_path / "small") as spec:
        assert same(spec.engine.logits, filled.engine.logits)


def test_snapshot_info_describes_speculative_engines(filled):
    info, of_target = snapshot_info(filled.snapshot_bytes()), snapshot_info(filled.engine.snapshot_bytes())
    assert (info.kind, of_target.kind) == ("speculative", "session")
    assert [name for name, _ in info.sections] == ["state", "target", "draft.0"]
    assert (info.arch_id, info.tokens_count, info.computed_count, info.fingerprint) == (
        "llama", 20, 20, of_target.fingerprint
    )  # fmt: skip


def test_drafts_of_every_kind(engine):
    texts = PromptLookup(texts=[[5, 9, 11]])
    with SpeculativeEngine(engine, ["grammar", PromptLookup(3, 1), engine, texts], adaptive=False) as spec:
        data = spec.snapshot_bytes()
        with pytest.raises(SnapshotMismatchError, match="can't be made again from the file: give draft="):
            SpeculativeEngine.restore_bytes(data)
        given = ["grammar", "lookup", MODEL, PromptLookup(texts=[[5, 9, 11]])]
        with SpeculativeEngine.restore_bytes(data, draft=given) as again:
            assert [type(d) for d in again.draft] == [GrammarDraft, PromptLookup, ox.DraftModel, PromptLookup]
            assert again.draft[2].config.kv_type == spec.draft[2].config.kv_type
        with pytest.raises(SnapshotMismatchError, match="it was made with 4 drafts, and 1 are given"):
            SpeculativeEngine.restore_bytes(data, draft="lookup")
        with pytest.raises(SnapshotError, match="one draft, which is a model"):
            spec.snapshot_bytes(format=1)
    data = SpeculativeEngine(engine, ["grammar", PromptLookup(3, 1)]).snapshot_bytes()
    with SpeculativeEngine.restore_bytes(data) as again:
        assert (again.draft[1].max_ngram, again.draft[1].min_ngram) == (3, 1)
    with SpeculativeEngine(engine, Oracle([]), acceptance="rejection") as spec:
        data, mine = spec.snapshot_bytes(), Oracle([])
        with pytest.raises(SnapshotMismatchError, match="give draft="):
            SpeculativeEngine.restore_bytes(data)
        with SpeculativeEngine.restore_bytes(data, draft=mine) as again:
            assert again.draft is mine
        with pytest.raises(SnapshotMismatchError, match="kind='object'"):
            SpeculativeEngine.restore_bytes(data, draft="lookup")


def test_another_draft_is_refused(filled, tmp_path, engine):
    data = filled.snapshot_bytes()
    changed = bytearray(Path(MODEL).read_bytes())
    changed[-100] ^= 1
    (tmp_path / "other.gguf").write_bytes(changed)
    for wrong, message in (
        (tmp_path / "other.gguf", "give the right one as draft"),
        (ox.shipped_draft(), "file_size is"),
        ("lookup", "its draft was a model, not 'lookup'"),
        (PromptLookup(), "its draft was a model, not <"),
    ):
        with pytest.raises(SnapshotMismatchError, match=message):
            SpeculativeEngine.restore_bytes(data, draft=wrong)
    with load("gpt2") as other, pytest.raises(SnapshotMismatchError, match=r"its draft: .*file_size is"):
        SpeculativeEngine.restore_bytes(data, draft=other)
    with ox.DraftModel(engine, kv_type="q8_0") as other, pytest.raises(SnapshotMismatchError, match="kv_type"):
        SpeculativeEngine.restore_bytes(data, draft=other)
    with pytest.raises(SnapshotMismatchError, match="target: it is of a model of architecture llama"):
        SpeculativeEngine.restore_bytes(data, path_of("gpt2"), tokenizer_path=MODEL)
    with SpeculativeEngine.restore_bytes(data, draft=engine) as spec:  # another way to the same model
        assert spec.generate([1, 5], **OPTIONS).token_ids == filled.generate([1, 5], **OPTIONS).token_ids


def test_snapshots_of_each_kind_name_the_right_restore(filled, engine):
    data = filled.snapshot_bytes()
    for bad in (data, SPECULATIVE):
        with pytest.raises(SnapshotFormatError, match=r"restore it with SpeculativeEngine\.restore"):
            ox.Engine.restore_bytes(bad)
        with pytest.raises(SnapshotFormatError, match="speculative"):
            engine.resume(bad)
    with pytest.raises(SnapshotFormatError, match=r"it is of kind 'session': restore it with Engine\.restore"):
        SpeculativeEngine.restore_bytes(engine.snapshot_bytes())
    with pytest.raises(ox.ConfigError, match="compress is not for format=1"):
        filled.snapshot_bytes(compress=True, format=1)
    with pytest.raises(ox.ConfigError, match="format must be 1 or 2"):
        filled.snapshot_bytes(format=3)
    with pytest.raises(SnapshotError, match="no place for acceptance='rejection'"):
        filled.snapshot_bytes(format=1)


# ---- the original's


def test_version_1_is_restored():
    with SpeculativeEngine.restore_bytes(SPECULATIVE, MODEL, MODEL) as spec:
        v = SpeculativeV1.decode(SPECULATIVE)
        assert (spec.options["num_speculative"], spec.seed, spec.accepted_tokens, spec.rng_state) == (
            4, None, (), v.rng_state
        )  # fmt: skip
        assert (spec.engine.position, spec.engine.config.kv_type, spec.draft.config.kv_type) == (24, "f32", "f32")
        written = spec.snapshot_bytes(format=1)
        w = SpeculativeV1.decode(written)
        for mine, theirs in ((w.target, v.target), (w.draft, v.draft)):
            same_fields(theirs, mine, but=("model_path", "model_fingerprint", "sampler", "num_threads"))
        same_fields(v.target.sampler, w.target.sampler)
        assert (w.num_speculative, w.spec_seed, w.rng_state, w.accepted_tokens) == (4, None, v.rng_state, [])
        with SpeculativeEngine.restore_bytes(spec.snapshot_bytes()) as later:  # through our own format
            assert later.snapshot_bytes(format=1) == written
            with ox.Engine.restore_bytes(v.target.encode(), MODEL) as twin:
                row = twin.forward_one(5)
                assert same(spec.engine.forward_one(5), row)
                assert same(later.engine.forward_one(5), row)
        assert spec.generate([1, 5, 9], max_tokens=5, seed=1, ignore_eos=True).token_ids


def test_version_1_needs_the_keys_and_values_of_the_draft():
    """Tokens are not known: what was computed of them can't be computed again, and that is said."""
    with SpeculativeEngine.restore_bytes(SPECULATIVE, MODEL, MODEL) as spec:
        spec.draft.forget(sequence_of(session_of(spec.engine)).id)
        with pytest.raises(SnapshotError, match="format=1 needs the draft's keys and values"):
            spec.snapshot_bytes(format=1)
        spec.engine.reset()
        assert SpeculativeV1.decode(spec.snapshot_bytes(format=1)).draft.kv.seq_len == 0


def test_version_1_is_written(engine):
    tokens = tokens_of(engine, 21)
    with load("llama", kv_type="f32") as target, ox.DraftModel(MODEL, kv_type="f32", num_threads=1) as draft:
        with SpeculativeEngine(target, draft, 7, 11) as spec:
            target.prefill(tokens)
            v = SpeculativeV1.decode(spec.snapshot_bytes(format=1))
            wanted = EngineV1.decode(target.snapshot_bytes(format=1))
            assert len(core_of(draft).sequences) == 0
        same_fields(wanted, v.target)
        same_fields(wanted, v.draft, but=("max_context_length",))  # the same model, and so the same bits
        assert (v.num_speculative, v.spec_seed, v.rng_state, v.accepted_tokens) == (7, 11, 11, [])
        with SpeculativeEngine.restore_bytes(v.encode()) as spec:
            assert session_of(spec.engine).tokens == tokens
            assert (spec.seed, spec.options["num_speculative"]) == (11, 7)
            assert same(spec.engine.forward_one(5), target.forward_one(5))


def other_version1(**fields):
    v = SpeculativeV1.decode(SPECULATIVE)
    for name, value in fields.items():
        setattr(v, name, value)
    return v.encode()


def test_version_1_that_can_not_be_restored_is_refused():
    v = SpeculativeV1.decode(SPECULATIVE)
    v.draft.kv = KvV1(v.draft.kv.keys, v.draft.kv.values, 23, 3, 128, 32)
    for data, error, message in (
        (
            other_version1(num_speculative=33),
            SnapshotMismatchError,
            "it drafts 33 tokens at a time; the most here are 32",
        ),
        (other_version1(accepted_tokens=[5, 384]), SnapshotDamagedError, "accepted_tokens are not all below 384"),
        (v.encode(), SnapshotDamagedError, "draft: its keys and values are not those of 23 tokens"),
    ):
        with pytest.raises(error, match=message):
            SpeculativeEngine.restore_bytes(data, MODEL, MODEL)
    with pytest.raises(SnapshotFileError, match=r"draft: its model is not at 'llama\.gguf' any more: give draft"):
        SpeculativeEngine.restore_bytes(SPECULATIVE, MODEL)
    with ox.DraftModel(MODEL) as f16, pytest.raises(SnapshotMismatchError, match="kv_type='f32'"):
        SpeculativeEngine.restore_bytes(SPECULATIVE, MODEL, f16)


# ---- damage


def restored(data):
    SpeculativeEngine.restore_bytes(data, MODEL, MODEL).close()


def test_cut_and_flipped_files_are_refused(filled):
    data = filled.snapshot_bytes()
    restored(data)
    sections, size = sections_of(data)
    places = {0, 8, 12, size} | {s.offset + d for s in sections for d in (0, 1, s.n_stored // 2)} | {len(data) - 1}
    for n in places:
        with pytest.raises(SnapshotError):
            restored(data[:n])
    for section in sections:
        for at in {section.offset, section.offset + section.n_stored // 2, section.offset + section.n_stored - 1}:
            bad = bytearray(data)
            bad[at] ^= 4
            with pytest.raises(SnapshotDamagedError, match=f"section {section.name} holds other bytes"):
                restored(bytes(bad))
    for at in range(0, size, 7):
        bad = bytearray(data)
        bad[at] ^= 1 << at % 8
        with pytest.raises(SnapshotError):
            restored(bytes(bad))


def test_hostile_states_are_refused(filled, monkeypatch):
    """Digests are right. Each value ends in an error of ours, or an engine; nothing that was loaded stays open."""
    loaded = []
    make = speculative.DraftModel

    def watched(*args, **fields):
        loaded.append(make(*args, **fields))
        return loaded[-1]

    monkeypatch.setattr(speculative, "DraftModel", watched)
    saved = unpacked(filled.snapshot_bytes())
    drafts = [("drafts", 0, name) for name in saved.state["drafts"][0]]
    n_errors = 0
    for path in [*paths(saved.state), *drafts]:
        for value in (None, -1, 10**30, "x", [1], {}, [{}]):
            data = packed(placed_state(saved, path, value))
            try:
                snapshot_info(data)
                restored(data)
            except SnapshotError:
                n_errors += 1
    assert n_errors > 100
    assert loaded
    assert all(draft.closed for draft in loaded)


def test_sections_that_are_no_snapshots_are_refused(filled):
    saved = unpacked(filled.snapshot_bytes())
    parts = dict(saved.tensors)
    inner = SnapshotReader(MemorySource(parts["draft.0"].array.tobytes()))
    for change, message in (
        ({"draft.0": None}, "sections"),
        ({"draft.1": parts["draft.0"]}, "sections"),
        ({"target": ArrayRows.whole(np.zeros(64, np.float32))}, "no snapshot"),
        ({"target": ArrayRows.whole(np.zeros(64, np.uint8))}, "target: this is no snapshot"),
        ({"draft.0": ArrayRows.whole(np.zeros((8, 8), np.uint8))}, "no snapshot"),
        (
            {"target": ArrayRows.whole(np.frombuffer(filled.snapshot_bytes(), np.uint8))},
            "it must be of a session, not of kind .speculative.",
        ),
        ({"draft.0": ArrayRows.whole(np.frombuffer(inner.source.read(0, 900), np.uint8))}, "draft.0: "),
    ):
        saved.tensors = {name: rows for name, rows in {**parts, **change}.items() if rows is not None}
        with pytest.raises(SnapshotError, match=message):
            restored(packed(saved))


def test_random_bytes_as_version_1_are_refused():
    rng = random.Random(1)
    for _ in range(60):
        bad = bytearray(SPECULATIVE)
        for _ in range(rng.randrange(1, 4)):
            bad[rng.choice([rng.randrange(12, 160), rng.randrange(len(bad))])] = rng.choice([0, 251, 255, 1])
        with contextlib.suppress(SnapshotError):
            restored(bytes(bad))
