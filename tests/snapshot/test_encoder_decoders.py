"""Requests of encoder-decoders: what an encoder left of a prompt is saved and read by all resumptions."""

import contextlib
import itertools

import numpy as np
import pytest

from oxillama.errors import OxiLlamaError, SnapshotDamagedError, SnapshotMismatchError
from oxillama.lora import Lora
from oxillama.snapshot.format.writer import packed
from tests.engine.encoded import EncodedPrompts
from tests.fakes import assert_idle
from tests.lora.loaded import adapter_for
from tests.snapshot.contents import paths, placed_state, unpacked
from tests.snapshot.models import load, path_of, tokens_of, told

NAMES = ("t5", "t5-flan", "umt5")
OPTIONS = {"max_tokens": 20, "seed": 3, "ignore_eos": True, "logprobs": 2, "repetition_penalty": 1.2}


def engine_of(name, **fields):
    return load(name, **{"context_size": 200, "kv_budget": 1 << 20} | fields)


@pytest.fixture(scope="module")
def engine():
    with engine_of("t5") as engine:
        yield engine
        assert_idle(engine)


@pytest.fixture(scope="module")
def saved(engine):
    """A request that has written a few tokens after a prompt that fills two blocks and a part of a third."""
    stream = engine.stream(tokens_of(engine, 37, seed=1), **OPTIONS)
    for _ in range(4):
        next(stream)
    data = stream.snapshot_bytes()
    stream.close()
    return data


@pytest.mark.parametrize("kv_type", ["f16", "f32", "q8_0", "q4_0"])
@pytest.mark.parametrize("name", NAMES)
def test_a_request_saved_after_every_token_goes_on(name, kv_type):
    with engine_of(name, kv_type=kv_type) as engine, engine_of(name, kv_type=kv_type, num_threads=2) as other:
        prompt = tokens_of(engine, 37, seed=1)
        whole = told(engine.stream(prompt, **OPTIONS))
        stream, first = engine.stream(prompt, **OPTIONS), []
        for n in itertools.count():
            data = stream.snapshot_bytes()
            with EncodedPrompts() as read:
                assert told(first + list(other.resume(data))) == whole, n
            assert read == ([prompt] if n == 0 else [])
            chunk = next(stream, None)
            if chunk is None:
                break
            first.append(chunk)
        assert n > 10
        assert_idle(engine)
        assert_idle(other)


@pytest.mark.parametrize("block", [16, 32, 64])
def test_what_stood_in_the_blocks_before_is_not_saved(block):
    """The last block of a prompt is part empty: its arrays are the same in a new cache and in one that was full."""
    found = []
    with engine_of("t5", kv_block_size=block) as engine:
        for _ in range(2):
            stream = engine.stream(tokens_of(engine, 37, seed=1), **OPTIONS, cache_prompt=False)
            next(stream)
            found.append(unpacked(stream.snapshot_bytes()).tensors)
            stream.close()
            engine.generate([tokens_of(engine, 120, seed=i) for i in range(8)], max_tokens=40, ignore_eos=True)
    new, used = found
    assert set(new) == set(used)
    for name, rows in new.items():
        assert np.array_equal(rows.array, used[name].array), name
    first = -(-37 // 16)
    for name in ("kv.0.0.k", "kv.0.0.v"):
        gap = new[name].array[first : -(-37 // block) * block // 16]
        assert not gap.any()


def test_several_completions_go_on_together(engine):
    prompt = tokens_of(engine, 50, seed=2)
    whole = told(engine.stream(prompt, n=3, **OPTIONS))
    stream = engine.stream(prompt, n=3, **OPTIONS)
    first = [next(stream) for _ in range(7)]
    data = stream.snapshot_bytes()
    with EncodedPrompts() as read:
        assert told(first + list(engine.resume(data))) == whole
    assert read == []
    stream.close()


def test_a_search_goes_on_after_every_round(engine):
    prompt, options = tokens_of(engine, 30, seed=4), {"beam_width": 3, "max_new_tokens": 7, "ignore_eos": True}
    whole = engine.beam_search(prompt, **options)
    rounds = engine.beam_rounds(prompt, **options)
    with engine_of("t5") as other:  # whose steps don't take the search on that is saved
        for n in itertools.count():
            with EncodedPrompts() as read:
                assert other.resume(rounds.snapshot_bytes()).results() == whole, n
            assert read == ([prompt] if n == 0 else [])
            if next(rounds, None) is None:
                break
    assert n == 6
    assert rounds.results() == whole


@pytest.mark.parametrize("acceptance", ["match", "rejection"])
def test_drafts_go_on(engine, acceptance):
    prompt = tokens_of(engine, 6, seed=5) * 6
    options = {"max_tokens": 40, "ignore_eos": True, "seed": 2, "draft": "lookup", "acceptance": acceptance}
    whole = engine.generate(prompt, **options).token_ids
    stream, found = engine.stream(prompt, **options), []
    for _ in range(5):
        found += next(stream).token_ids
    for chunk in engine.resume(stream.snapshot_bytes()):
        found += chunk.token_ids
    assert found == whole
    stream.close()


def test_adapters_go_on(engine, tmp_path):
    adapter, _ = adapter_for(path_of("t5"), tmp_path / "adapter.gguf")
    prompt = tokens_of(engine, 20, seed=6)
    plain = told(engine.stream(prompt, **OPTIONS))
    engine.load_lora("a", Lora.load(adapter))
    try:
        whole = told(engine.stream(prompt, **OPTIONS, lora="a"))
        assert whole != plain
        stream = engine.stream(prompt, **OPTIONS, lora="a")
        first = [next(stream) for _ in range(3)]
        assert told(first + list(engine.resume(stream.snapshot_bytes()))) == whole
        stream.close()
    finally:
        engine.unload_lora("a")


def test_without_room_the_prompt_is_read_again(engine, saved):
    expected = told(list(engine.resume(saved)))
    with engine_of("t5", kv_budget=7 * 12288, context_size=96) as small:
        stream = small.stream(tokens_of(small, 60, seed=9), max_tokens=30, seed=1, ignore_eos=True)
        next(stream)
        with EncodedPrompts() as read:
            assert told(list(small.resume(saved))) == expected
        assert [len(prompt) for prompt in read if len(prompt) == 37] == [37]
        stream.close()


def test_files_go_on_with_a_base_and_shared_blocks(engine, tmp_path):
    prompt = tokens_of(engine, 37, seed=1)
    whole = told(engine.stream(prompt, **OPTIONS))
    for options in ({}, {"base": tmp_path / "0.snap"}, {"shared": True}, {"compress": True}):
        stream, first = engine.stream(prompt, **OPTIONS), []
        first.append(next(stream))
        stream.snapshot(tmp_path / "0.snap")
        first.append(next(stream))
        stream.snapshot(tmp_path / "1.snap", **options)
        assert told(first + list(engine.resume(tmp_path / "1.snap"))) == whole
        stream.close()


def test_blocks_of_another_size_are_named(saved):
    with (
        engine_of("t5", kv_block_size=64) as other,
        pytest.raises(SnapshotMismatchError, match=r"KV blocks of 16 tokens, and this engine's have 64: .*_size=16"),
    ):
        other.resume(saved)


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("n_source", None, "n_source"),
        ("n_source", 0, "n_source"),
        ("n_source", 49, "n_source|behind the prompt"),
        ("n_source", 36, "behind the prompt of 36 tokens|are others"),
        ("n_source", 20, "behind the prompt of 20 tokens"),
        ("n_computed", 16, "n_computed"),
        ("n_computed", 47, "n_computed"),
        ("n_prompt", 37, "behind the prompt"),
    ],
)
def test_damaged_prompts_are_refused(engine, saved, name, value, match):
    with pytest.raises(SnapshotDamagedError, match=match):
        engine.resume(packed(placed_state(unpacked(saved), ("sequence", name), value)))
    assert_idle(engine)


def test_a_decoder_refuses_the_prompt_of_an_encoder(saved):
    with load("llama") as decoder:
        stream = decoder.stream(tokens_of(decoder, 20), max_tokens=9, seed=1)
        next(stream)
        data = unpacked(stream.snapshot_bytes())
        with pytest.raises(SnapshotDamagedError, match="n_source"):
            decoder.resume(packed(placed_state(data, ("sequence", "n_source"), 20)))
        stream.close()


@pytest.mark.long
def test_every_value_may_be_wrong(engine, saved):
    """A changed value is refused by a typed error or has no bearing on what the engine keeps."""
    expected = told(list(engine.resume(saved)))
    contents = unpacked(saved)
    for path in paths(contents.state):
        for value in (None, -1, 0, 16, 1 << 40, 0.5, "x", [], {}, True):
            with contextlib.suppress(OxiLlamaError):
                data = packed(placed_state(contents, path, value))
                list(itertools.islice(engine.resume(data), 30))
    assert told(list(engine.resume(saved))) == expected
