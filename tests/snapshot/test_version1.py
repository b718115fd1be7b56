"""Version 1 files, read field by field, resumed, and written again."""

import contextlib
import random
import struct

import numpy as np
import pytest

import oxillama as ox
from oxillama.errors import SnapshotDamagedError, SnapshotError, SnapshotFormatError, SnapshotMismatchError
from oxillama.snapshot import snapshot_info
from oxillama.snapshot.format.v1 import Decoder, Encoder, EngineV1, KvV1, SpeculativeV1, SsmV1
from tests.fakes import core_of, sequence_of, session_of
from tests.snapshot.models import load, path_of, same, tokens_of
from tests.snapshot.version1 import ENGINE, FOLDER, SPECULATIVE, same_fields

# What the original was given, from which it computed what the file holds.
PROMPT = [1, 300, 352, 305, 316, 299, 300, 318, 312, 265, 300, 302, 291, 307, 313, 299]


def test_every_field_of_a_session_is_read():
    v = EngineV1.decode(ENGINE)
    assert (v.magic, v.version, v.arch_id, v.model_path, v.tokenizer_path) == (
        b"OXISNAP1",
        1,
        "llama",
        "llama.gguf",
        None,
    )
    assert (v.tokens, v.grammar_source, v.max_context_length, v.num_threads, v.prefill_chunk_size) == (
        [],
        None,
        128,
        2,
        512,
    )
    assert (v.kv.seq_len, v.kv.num_layers, v.kv.max_seq_len, v.kv.kv_dim) == (16, 3, 128, 32)
    assert [layer.shape for layer in v.kv.keys + v.kv.values] == [(512,)] * 6
    s = v.sampler
    assert (s.rng_state, s.top_k, s.seed, s.mirostat_mode, s.repetition_penalty_window) == (42, 40, 42, 0, 64)
    floats = [s.mirostat_mu, s.temperature, s.top_p, s.min_p, s.repetition_penalty, s.mirostat_tau, s.mirostat_eta]
    assert floats == [float(np.float32(x)) for x in (10.0, 0.7, 0.9, 0.05, 1.1, 5.0, 0.1)]
    f = v.model_fingerprint
    assert (f.file_size, f.mtime_secs, f.probe_size) == (577888, 1795170470, 8 << 20)
    assert v.encode() == ENGINE


def test_every_field_of_a_speculative_session_is_read():
    v = SpeculativeV1.decode(SPECULATIVE)
    assert (v.num_speculative, v.spec_seed, v.accepted_tokens) == (4, None, [])
    assert v.rng_state == int.from_bytes(SPECULATIVE[-8:], "little")
    assert (v.target.arch_id, v.target.kv.seq_len, v.draft.kv.seq_len) == ("llama", 24, 24)
    assert v.encode() == SPECULATIVE


@pytest.mark.parametrize("seed", range(20))
def test_random_values_round_trip(seed):
    rng = random.Random(seed)
    v = EngineV1.decode(ENGINE)

    def number(bits):
        return rng.choice([0, 250, 251, (1 << 16) - 1, 1 << 16, (1 << 32) - 1, rng.getrandbits(bits)]) % (1 << bits)

    def floats(n):
        return np.frombuffer(rng.randbytes(4 * n), np.float32)

    v.arch_id, v.tokenizer_path = "é" * rng.randrange(300), rng.choice([None, "", "a/b"])
    v.tokens = [number(32) for _ in range(rng.randrange(300))]
    v.kv, v.ssm = rng.choice([(v.kv, None), (None, SsmV1([floats(3), floats(0)], 7)), (v.kv, SsmV1([floats(9)], 1))])
    v.sampler.seed, v.sampler.rng_state = rng.choice([None, number(64)]), number(64)
    v.grammar_source, v.num_threads = rng.choice([None, 'root ::= "é"']), number(62)
    data = v.encode()
    again = EngineV1.decode(data)
    same_fields(v, again)
    assert again.encode() == data
    w = SpeculativeV1(v, again, number(64), v.sampler.seed, v.tokens, number(64))
    found = SpeculativeV1.decode(w.encode())
    same_fields(found.target, v)
    assert (found.num_speculative, found.spec_seed, found.accepted_tokens, found.rng_state) == (
        w.num_speculative, w.spec_seed, w.accepted_tokens, w.rng_state,
    )  # fmt: skip


def test_signed_numbers_round_trip():
    for value in (0, 1, -1, 125, -126, 1 << 40, -(1 << 40), (1 << 63) - 1, -(1 << 63)):
        e = Encoder()
        e.sint(value)
        assert Decoder(bytes(e.data), "x").sint("value") == value


def test_a_version_1_session_resumes():
    engine = ox.Engine.restore(FOLDER / "engine.oxsnap1", path_of("llama"))
    twin = load("llama", kv_type="f32", context_size=128)
    twin.prefill(PROMPT)
    assert (engine.position, engine.context_size, engine.num_threads, engine.config.kv_type) == (16, 128, 2, "f32")
    for token in (5, 300, 9):
        a, b = engine.forward_one(token), twin.forward_one(token)
        # Another implementation's rounding, over three layers of 64 values.
        assert np.abs(a - b).max() < 1e-5 * np.abs(b).max()
    assert session_of(engine).sampler.config.seed == 42
    assert session_of(engine).sampler.state()["rng"] == 42


def test_a_session_written_again_has_the_same_fields(tmp_path):
    engine = ox.Engine.restore_bytes(ENGINE, path_of("llama"))
    engine.snapshot(tmp_path / "again", format=1)
    v = EngineV1.decode((tmp_path / "again").read_bytes())
    same_fields(EngineV1.decode(ENGINE), v, but=("model_path", "model_fingerprint"))
    for name in ("file_size", "head_hash", "tail_hash", "probe_size"):
        assert getattr(v.model_fingerprint, name) == getattr(EngineV1.decode(ENGINE).model_fingerprint, name)
    later = ox.Engine.restore_bytes(engine.snapshot_bytes())  # and in our own format
    assert same(engine.forward_one(7), later.forward_one(7))
    assert EngineV1.decode(later.snapshot_bytes(format=1)).tokens == []


@pytest.mark.parametrize("kv_type", ["f16", "f32", "q8_0", "q4_0"])
@pytest.mark.parametrize("name", ["llama", "phi3", "gpt2", "bloom"])
def test_our_sessions_are_written_as_version_1(name, kv_type):
    with load(name, kv_type=kv_type) as engine, load(name, kv_type="f32") as other:
        tokens = tokens_of(engine, 21)
        engine.prefill(tokens)
        data = engine.snapshot_bytes(format=1)
        v = EngineV1.decode(data)
        assert v.encode() == data
        assert v.tokens == tokens
        assert v.kv.seq_len == 21
        session = other.resume(data)
        assert session.tokens == tokens
        row, wanted = session.forward_one(7), engine.forward_one(7)
        if kv_type == "f32":
            assert same(row, wanted)
        else:  # the same keys and values, in other arithmetic
            assert np.abs(row - wanted).max() < 0.05 * np.abs(wanted).max()


def test_a_restored_grammar_starts_anew():
    v = EngineV1.decode(ENGINE)
    v.grammar_source = 'root ::= "ab"'
    engine = ox.Engine.restore_bytes(v.encode(), path_of("llama"))
    assert session_of(engine).sampler.config.grammar == 'root ::= "ab"'
    assert not session_of(engine).sampler.memory.grammar.is_complete
    assert EngineV1.decode(engine.snapshot_bytes(format=1)).grammar_source == 'root ::= "ab"'


def test_unknown_tokens_are_not_computed_again():
    engine = ox.Engine.restore_bytes(ENGINE, path_of("llama"))
    assert session_of(engine).tokens == [-1] * 16
    core_of(engine).change(
        lambda: core_of(engine).scheduler.blocks.rewind(sequence_of(session_of(engine)), 0)
    )  # as others may
    with pytest.raises(ox.OxiLlamaError, match="-1"):
        engine.forward_one(5)
    engine.reset()
    assert engine.prefill(PROMPT).shape == (engine.n_vocab,)


@pytest.mark.parametrize("data", [ENGINE, SPECULATIVE], ids=["engine", "speculative"])
def test_snapshot_info_describes_version_1(data, tmp_path):
    (tmp_path / "file").write_bytes(data)
    info = snapshot_info(tmp_path / "file")
    assert info == snapshot_info(data)
    assert (info.magic, info.version, info.arch_id, info.model_path) == (data[:8], 1, "llama", "llama.gguf")
    assert (info.tokenizer_path, info.max_context_length, info.num_threads, info.tokens_count) == (None, 128, 2, 0)


@pytest.mark.parametrize("data", [ENGINE, SPECULATIVE], ids=["engine", "speculative"])
def test_files_cut_short_are_refused(data):
    for n in [*range(300), *range(300, len(data), 97), len(data) - 1]:
        with pytest.raises(SnapshotError):
            snapshot_info(data[:n])
    with pytest.raises(SnapshotDamagedError, match="followed by 1 bytes more"):
        snapshot_info(data + b"\0")


def test_hostile_bytes_are_refused():
    """Whatever is in it, it is an error of ours or a description, and at once."""
    rng = random.Random(0)
    for data in (ENGINE, SPECULATIVE):
        for _ in range(1500):
            bad = bytearray(data)
            for _ in range(rng.randrange(1, 4)):
                at = rng.randrange(9, 130) if rng.random() < 0.7 else rng.randrange(9, len(bad))
                bad[at] = rng.choice([0, 250, 251, 252, 253, 254, 255, rng.randrange(256)])
            with contextlib.suppress(SnapshotError):
                snapshot_info(bytes(bad))


def changed(**fields):
    v = EngineV1.decode(ENGINE)
    for name, value in fields.items():
        setattr(v, name, value)
    return v


def other_sampler(**fields):
    v = EngineV1.decode(ENGINE)
    for name, value in fields.items():
        setattr(v.sampler, name, value)
    return v


def other_kv(**fields):
    v = EngineV1.decode(ENGINE)
    for name, value in fields.items():
        setattr(v.kv, name, value)
    return v


CASES = [
    (changed(arch_id="qwen2"), SnapshotMismatchError, "architecture qwen2, not llama"),
    (
        changed(model_fingerprint=ox.snapshot.ModelFingerprint(1, 0, b"", b"")),
        SnapshotMismatchError,
        "file_size is 1 there",
    ),
    (changed(kv=None, ssm=SsmV1([], 3)), SnapshotMismatchError, "only attention can be resumed"),
    (changed(ssm=SsmV1([], 3)), SnapshotMismatchError, "recurrent"),
    (changed(tokens=[1, 2]), SnapshotDamagedError, "2 tokens, fewer than those of its KV, 16"),
    (changed(tokens=[9999] * 16), SnapshotDamagedError, "tokens"),
    (other_kv(seq_len=17), SnapshotDamagedError, "are not those of 17 tokens"),
    (other_kv(num_layers=4), SnapshotDamagedError, "keys and values"),
    (other_kv(kv_dim=64, seq_len=8), SnapshotMismatchError, "3 layers of 64 keys"),
    (other_sampler(temperature=float("nan")), SnapshotDamagedError, "temperature"),
    (other_sampler(mirostat_mode=7), SnapshotDamagedError, "mirostat"),
    (changed(grammar_source="root ::= nothing"), SnapshotDamagedError, "sampler"),
]


@pytest.mark.parametrize(("v", "error", "message"), CASES, ids=[c[2][:20] for c in CASES])
def test_sessions_that_can_not_be_resumed_are_refused(v, error, message):
    with load("llama", kv_type="f32", context_size=128) as engine:
        row = engine.prefill([1, 2, 3])
        with pytest.raises(error, match=message):
            engine.resume(v.encode() if v.model_fingerprint.head_hash else _with_empty_hashes(v))
        engine.reset()
        assert same(engine.prefill([1, 2, 3]), row)


def _with_empty_hashes(v):
    f = v.model_fingerprint
    v.model_fingerprint = ox.snapshot.ModelFingerprint(f.file_size, 0, bytes(32), bytes(32), 8 << 20)
    return v.encode()


def test_state_without_a_field_in_version_1_is_refused(tmp_path):
    with load("llama") as engine:
        with pytest.raises(SnapshotMismatchError, match="load the model with kv_type='f32'"):
            engine.resume(ENGINE)
        with pytest.raises(ox.ConfigError, match="format must be 1 or 2, not 3"):
            engine.snapshot(tmp_path / "x", format=3)
        for option in ({"compress": True}, {"shared": True}, {"base": tmp_path / "y"}):
            with pytest.raises(ox.ConfigError, match=f"{next(iter(option))} is not for format=1"):
                engine.snapshot(tmp_path / "x", format=1, **option)
        session_of(engine).sampler = ox.Sampler(ox.SamplerConfig(top_a=0.1))
        with pytest.raises(SnapshotError, match="no place for the sampler's top_a"):
            engine.snapshot_bytes(format=1)
    with load("mamba") as engine, pytest.raises(SnapshotError, match="recurrent"):
        engine.snapshot_bytes(format=1)
    assert not list(tmp_path.iterdir())
    with pytest.raises(SnapshotFormatError, match="version 2 of speculative"):
        snapshot_info(SPECULATIVE[:8] + struct.pack("<I", 2) + SPECULATIVE[12:])
    with load("llama", kv_type="f32") as engine, pytest.raises(SnapshotFormatError, match="speculative"):
        engine.resume(SPECULATIVE)


NOTHING = [np.empty(0, np.float32)] * 3


@pytest.mark.parametrize("kv", [KvV1(NOTHING, NOTHING, 0, 3, 128, 32), KvV1([], [], 0, 0, 0, 0)])
def test_an_empty_session_is_written(kv):
    with ox.Engine.restore_bytes(changed(kv=kv).encode(), path_of("llama")) as engine:
        assert (engine.position, engine.context_size) == (0, 128)
        with load("llama", kv_type="f32", context_size=128) as twin:
            assert same(engine.prefill(PROMPT), twin.prefill(PROMPT))


def test_zero_and_the_largest_number_mean_defaults(caplog):
    """Of the original's, zero is a choice of the engine's, and the largest number is all."""
    most = (1 << 64) - 1
    v = changed(num_threads=0, prefill_chunk_size=0, tokenizer_path="tokenizer.json")
    v.sampler.top_k = v.sampler.repetition_penalty_window = most
    with ox.Engine.restore_bytes(v.encode(), path_of("llama")) as engine:
        assert engine.num_threads >= 1
        assert engine.position == 16
        config = session_of(engine).sampler.config
        assert config.top_k > engine.n_vocab
        assert config.repetition_penalty_window > engine.context_size
    assert "tokenizer.json is no GGUF file: the model's own is used" in caplog.text


@pytest.mark.parametrize(
    "fields", [{"num_threads": 1 << 40}, {"max_context_length": 0}, {"max_context_length": 1 << 40}]
)
def test_invalid_sampler_settings_are_refused(fields):
    with pytest.raises(SnapshotDamagedError, match="settings of its engine"):
        ox.Engine.restore_bytes(changed(**fields).encode(), path_of("llama"))
