"""Damaged files: loading ends in an error that names the file, and the engine stays usable."""

import contextlib
import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import oxillama as ox
from oxillama.core.results import CancelToken
from oxillama.errors import (
    SnapshotDamagedError,
    SnapshotError,
    SnapshotFileError,
    SnapshotFormatError,
    SnapshotMismatchError,
)
from oxillama.snapshot import snapshot_info
from oxillama.snapshot.format.layout import HEADER_BYTES, head_of
from oxillama.snapshot.format.reader import ArrayRows, SnapshotReader
from oxillama.snapshot.format.source import MemorySource
from oxillama.snapshot.format.writer import packed
from tests.fakes import core_of
from tests.snapshot.contents import paths, placed_state, sections_of, unpacked
from tests.snapshot.models import load, path_of, same, tokens_of, told

PROMPT = list(range(3, 40))
OPTIONS = {"max_tokens": 12, "seed": 1, "grammar": "root ::= [a-z ]+", "logprobs": 1, "stop": ["zzz"]}
OPTIONS |= {"repetition_penalty": 1.1}


@pytest.fixture(scope="module")
def engine():
    with load("jamba") as engine:
        yield engine


@pytest.fixture(scope="module")
def text(engine):
    stream = engine.stream(PROMPT, **OPTIONS)
    first = [next(stream) for _ in range(3)]
    saved = stream.snapshot()
    assert told(first + list(engine.resume(saved))) == told(engine.stream(PROMPT, **OPTIONS))
    return saved


@pytest.fixture(autouse=True)
def unharmed(engine, request):
    """After each test the engine gives what it gave before, and has nothing that it doesn't use."""
    before = told(engine.stream(PROMPT, **OPTIONS))
    yield
    assert told(engine.stream(PROMPT, **OPTIONS)) == before
    scheduler = core_of(engine).scheduler
    assert not scheduler.live
    for pool in (core_of(engine).pool.blocks, core_of(engine).pool.slots):
        pool.check_invariants()


def test_a_file_cut_at_every_boundary_is_refused(engine, text):
    sections, size = sections_of(text)
    places = {0, 1, 7, 8, 9, 11, 12, 40, HEADER_BYTES - 1, HEADER_BYTES, size - 1, size}
    for s in sections:
        places |= {s.offset - 1, s.offset, s.offset + 1, s.offset + s.n_stored - 1, s.offset + s.n_stored}
    for n in sorted(places - {len(text)}):
        for use in (engine.resume, snapshot_info):
            with pytest.raises(SnapshotError):
                use(text[:n])
    for more in (b"\0", b"\1" * 100):
        with pytest.raises(SnapshotDamagedError, match=f"the file has {len(text) + len(more)} bytes"):
            engine.resume(text + more)


def test_every_flipped_bit_of_header_table_and_state_is_refused(engine, text):
    sections, size = sections_of(text)
    state = sections[0]
    assert state.name == "state"
    for at in [*range(size), *range(state.offset, state.offset + state.n_stored)]:
        for bit in range(8):
            bad = bytearray(text)
            bad[at] ^= 1 << bit
            with pytest.raises(SnapshotError):
                SnapshotReader(MemorySource(bytes(bad)))


def test_a_flipped_bit_of_every_array_is_refused(engine, text):
    for s in sections_of(text)[0][1:]:
        for at in {s.offset, s.offset + s.n_stored - 1, s.offset + s.n_stored // 2}:
            bad = bytearray(text)
            bad[at] ^= 0x10
            with pytest.raises(SnapshotDamagedError, match=f"section {s.name} holds other bytes"):
                engine.resume(bytes(bad))


def test_exchanged_sections_are_refused(engine, text):
    sections = sections_of(text)[0]
    same_size = {}
    for s in sections:
        same_size.setdefault((s.shape, s.code), []).append(s)
    a, b = next(group for group in same_size.values() if len(group) > 1)[:2]
    bad = bytearray(text)
    bad[a.offset : a.offset + a.n_stored] = text[b.offset : b.offset + b.n_stored]
    bad[b.offset : b.offset + b.n_stored] = text[a.offset : a.offset + a.n_stored]
    with pytest.raises(SnapshotDamagedError, match=f"section {a.name}|section {b.name}"):
        engine.resume(bytes(bad))


def test_other_magic_and_versions_are_refused(engine, text):
    with pytest.raises(SnapshotFormatError, match=r"no snapshot: it begins with b'GGUF"):
        engine.resume(b"GGUF" + text[4:])
    with pytest.raises(SnapshotFormatError, match="version 3 of snapshots is not known here: 1 and 2 are"):
        engine.resume(text[:8] + b"\3\0\0\0" + text[12:])
    for data in (b"", b"OXI", text[:8]):
        with pytest.raises(SnapshotError):
            engine.resume(data)


# ---- hostile: digests are right, and what they are of makes no sense


VALUES = [None, -1, 0, 1, 3, 1 << 40, 10**30, 1.5, "", "x", [], [1], [[1, 2]], {}, True, [None], [["a", 1e308]]]


@pytest.mark.long
def test_every_value_of_the_description_replaced(engine, text):
    """Each ends in an error of ours, or in a request that can be served."""
    saved = unpacked(text)
    assert told(engine.resume(packed(saved))) == told(engine.resume(text))
    n_errors = 0
    for path in paths(saved.state):
        for value in VALUES:
            data = packed(placed_state(saved, path, value))
            with contextlib.suppress(SnapshotError):
                snapshot_info(data)
            try:
                list(engine.resume(data))
            except ox.OxiLlamaError:
                n_errors += 1
    assert n_errors > 300


def test_every_replaced_engine_setting_is_checked(engine):
    engine.prefill(PROMPT)
    saved = unpacked(engine.snapshot_bytes())
    engine.reset()
    with ox.Engine.restore_bytes(packed(saved)) as restored:
        assert restored.position == len(PROMPT)
    settings = set()
    for part in ("engine", "model", "adapters", "session", "sequence"):
        for path in paths(saved.state[part], (part,)):
            for value in (None, -1, 3, "x", [[1, 2]], {"a": "b"}):
                try:
                    ox.Engine.restore_bytes(packed(placed_state(saved, path, value))).close()
                except (SnapshotError, ox.LoadError):
                    continue
                except ox.ConfigError:  # of settings that only the model can tell are wrong
                    settings.add(path[:2])
    assert settings <= {("engine", "config"), ("engine", "context_size")}


def test_arrays_of_other_shapes_are_refused(engine, text):
    saved = unpacked(text)
    for name, rows in saved.tensors.items():
        data = rows.data
        for other in (
            data[:-1], data[:0], np.concatenate([data, data]), data.astype(np.float64), data.astype(np.int32),
            data.reshape(*data.shape, 1), np.zeros((1 << 9, *data.shape[1:]), data.dtype),
        ):  # fmt: skip
            if other.dtype == data.dtype and other.shape == data.shape:
                continue
            bad = replace(saved, tensors=saved.tensors | {name: ArrayRows.whole(other, rows.start)})
            with pytest.raises(
                SnapshotError,
                match=f"{name}|its tokens|marks|place in the grammar|n_computed|n_prompt|n_shown|array rng",
            ):
                list(engine.resume(packed(bad)))
        less = {n: r for n, r in saved.tensors.items() if n != name}
        with pytest.raises(SnapshotError, match=f"{name}|its tokens"):
            list(engine.resume(packed(replace(saved, tensors=less))))
    more = saved.tensors | {"kv.99.0.k": saved.tensors["tokens"]}
    with pytest.raises(SnapshotMismatchError, match=r"array kv\.99\.0\.k is none of this model's"):
        engine.resume(packed(replace(saved, tensors=more)))


def test_an_array_without_its_first_rows_is_refused(engine, text):
    saved = unpacked(text)
    name = next(name for name, rows in saved.tensors.items() if name.startswith("state"))
    bad = replace(saved, tensors=saved.tensors | {name: ArrayRows.whole(saved.tensors[name].data[1:], 1)})
    with pytest.raises(SnapshotDamagedError, match=f"array {name} is missing"):
        list(engine.resume(packed(bad)))


def test_invalid_tokens_are_refused(engine, text):
    saved = unpacked(text)
    for token in (-1, engine.n_vocab, -(1 << 31), (1 << 31) - 1):
        data = saved.tensors["tokens"].data.copy()
        data[5] = token
        bad = replace(saved, tensors=saved.tensors | {"tokens": ArrayRows.whole(data)})
        with pytest.raises(SnapshotDamagedError, match="its tokens are missing, or not all from 0"):
            engine.resume(packed(bad))


def test_random_bytes_with_right_digests_are_refused(engine, text):
    rng = random.Random(1)
    sections = sections_of(text)[0]
    for _ in range(300):
        i = rng.randrange(len(sections))
        fields = {
            "code": rng.randrange(7), "codec": rng.randrange(3), "first": rng.choice([0, 1, 1 << 40, 1 << 63]),
            "offset": rng.choice([0, 64, 1 << 40, 1 << 62, sections[i].offset + 64]),
            "n_stored": rng.choice([0, 1, 1 << 40, 1 << 62]),
            "shape": (rng.choice([0, 1, 1 << 47, 1 << 62]),),
            "name": rng.choice(["state", "", "a/b", "x" * 32, sections[0].name]),
        }  # fmt: skip
        name = rng.choice(list(fields))
        changed = [replace(s, **{name: fields[name]}) if j == i else s for j, s in enumerate(sections)]
        if getattr(sections[i], name) == fields[name]:
            continue
        head = head_of(changed)
        with pytest.raises(SnapshotError):
            engine.resume(head + text[len(head) :])


# ---- other models, adapters and settings


def test_a_snapshot_of_another_model_is_refused(engine, text, tmp_path):
    path = tmp_path / "session"
    path.write_bytes(text)
    with load("mamba") as other, pytest.raises(SnapshotMismatchError, match="architecture jamba, not mamba"):
        other.resume(text)
    with pytest.raises(SnapshotMismatchError, match="architecture jamba, not llama"):
        ox.Engine.restore(path, load("llama").config.model_path)
    saved = unpacked(text)
    for field, value in (
        ("file_size", 5),
        ("head_hash", "ab" * 32),
        ("tail_hash", "ab" * 32),
        ("tensor_hash", "ab" * 32),
    ):
        with pytest.raises(SnapshotMismatchError, match=f"of another model: {field} is "):
            engine.resume(packed(placed_state(saved, ("model", "fingerprint", field), value)))
    # A copy has another time, and is the same model.
    later = packed(placed_state(saved, ("model", "fingerprint", "mtime_secs"), 1))
    assert told(engine.resume(later)) == told(engine.resume(text))


def test_a_snapshot_of_other_settings_is_refused(text):
    with (
        load("jamba", kv_type="q8_0") as other,
        pytest.raises(SnapshotMismatchError, match="kv_type='f16', and this one"),
    ):
        other.resume(text)
    overrides = {"jamba.vocab_size": 384}
    with load("jamba", overrides=overrides) as other, pytest.raises(SnapshotMismatchError, match="overrides=None"):
        other.resume(text)
    with load("jamba", context_size=45) as other, pytest.raises(SnapshotMismatchError, match="context_size"):
        other.resume(text)


def test_a_model_changed_since_it_was_loaded_is_not_saved(tmp_path):
    source = load("llama").config.model_path
    path = tmp_path / "model.gguf"
    path.write_bytes(Path(source).read_bytes())
    with ox.load(path, num_threads=1) as engine:
        engine.prefill([1, 2, 3])
        path.unlink()  # what is loaded is known all the same
        path.write_bytes(Path(path_of("gemma3")).read_bytes())
        engine.snapshot(tmp_path / "session")
        row = engine.forward_one(5)
    with pytest.raises(SnapshotMismatchError, match=r"session: it is of another model: file_size is 577888 there"):
        ox.Engine.restore(tmp_path / "session")
    assert same(ox.Engine.restore(tmp_path / "session", source).forward_one(5), row)


# ---- files


def test_unreadable_files_are_refused(engine, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SnapshotFileError, match="no regular file"):
        engine.resume(tmp_path / "pipe")
    with pytest.raises(SnapshotFileError, match="no regular file"):
        engine.resume(tmp_path)
    with pytest.raises(SnapshotFileError, match="can't be read"):
        engine.resume(tmp_path / "missing")
    with pytest.raises(OSError, match="can't be read"):
        snapshot_info("a\0b")
    for bad in (None, 5, ["x"]):
        with pytest.raises(ox.ConfigError, match="path or bytes"):
            engine.resume(bad)


def test_a_failed_write_leaves_the_old_file(engine, tmp_path, monkeypatch):
    path = tmp_path / "session"
    path.write_bytes(b"old")
    engine.reset()
    engine.prefill(PROMPT)
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patched:

            def fail(*ignored, **also):
                raise OSError(28, "No space left on device")

            patched.setattr(os, name, fail)
            with pytest.raises(SnapshotFileError, match="No space left on device"):
                engine.snapshot(path)
        assert path.read_bytes() == b"old"
        assert [p.name for p in tmp_path.iterdir()] == ["session"]
    for place in (tmp_path / "no" / "file", tmp_path):
        with pytest.raises(SnapshotFileError, match="can't be written"):
            engine.snapshot(place)
    engine.snapshot(path)
    assert snapshot_info(path).tokens_count == len(PROMPT)
    engine.reset()


def test_bad_arguments_are_named(engine, tmp_path):
    for bad in (None, 5, "", b"x", ["a"]):
        with pytest.raises(ox.ConfigError, match="path must be the path of a file"):
            engine.snapshot(bad)
    for bad in (1, "yes", None):
        with pytest.raises(ox.ConfigError, match="compress must be True or False"):
            engine.snapshot(tmp_path / "x", compress=bad)
        with pytest.raises(ox.ConfigError, match="shared must be True or False"):
            engine.snapshot(tmp_path / "x", shared=bad)
    stream = engine.stream(PROMPT, **OPTIONS)
    with pytest.raises(ox.ConfigError, match="index must be from 0 to 0"):
        stream.snapshot(index=1)
    with pytest.raises(ox.ConfigError, match="base and shared are for files"):
        stream.snapshot(shared=True)
    stream.close()
    with pytest.raises(ox.ConfigError, match="its session had no sampler: give none"):
        engine.resume(engine.snapshot_bytes(), sampler=ox.SamplerConfig())
    with pytest.raises(ox.ConfigError, match="cancel_token is for requests; this is of a session"):
        engine.resume(engine.snapshot_bytes(), cancel_token=CancelToken())


def test_functions_must_be_given_again(engine):
    def halve(ids, logits):
        logits *= 0.5

    def pick(candidates, config, state):
        return None

    chain = ox.SamplerChain.from_config(ox.SamplerConfig(seed=1)).insert(pick, before="temperature")
    options = {"max_tokens": 8, "sampler": chain, "logits_processors": [halve]}
    whole = told(engine.stream(PROMPT, **options))
    stream = engine.stream(PROMPT, **options)
    first = [next(stream), next(stream)]
    saved = stream.snapshot()
    stream.close()
    with pytest.raises(SnapshotMismatchError, match="made with 1 logits_processors"):
        engine.resume(saved, sampler=chain)
    with pytest.raises(SnapshotMismatchError, match="functions that no file can hold: give sampler="):
        engine.resume(saved, logits_processors=[halve])
    with pytest.raises(SnapshotMismatchError, match="stages"):
        engine.resume(saved, logits_processors=[halve], sampler=ox.SamplerChain(["draw"]))
    rest = engine.resume(saved, logits_processors=[halve], sampler=chain)
    assert told(first + list(rest)) == whole


def test_a_closed_engine_saves_nothing(text):
    engine = load("jamba")
    stream = engine.stream(PROMPT, **OPTIONS)
    engine.close()
    for use in (engine.snapshot_bytes, stream.snapshot, lambda: engine.resume(text)):
        with pytest.raises(ox.EngineClosedError):
            use()


def test_encoders_have_nothing_to_save():
    with load("bert") as engine, pytest.raises(ox.GenerateError, match="predicts no next token"):
        engine.snapshot_bytes()


def test_a_session_in_use_is_not_saved_and_a_resumed_one_is_independent(engine):
    session = engine.session()
    session.prefill(tokens_of(engine, 5))
    row = session.logits
    with pytest.raises(ox.GenerateError, match="in use by another thread"):
        session._alone(session.snapshot_bytes)
    with engine.resume(session.snapshot_bytes()) as other:
        assert same(other.logits, row)
        assert other.position == 5
        other.truncate(3)
        assert other.logits is None
    session.close()
    with pytest.raises(ox.GenerateError, match="the session is closed"):
        session.snapshot_bytes()
