"""Beam searches saved in every round, and in the middle of one, resume elsewhere with the same results."""

import asyncio
import json

import numpy as np
import pytest

import oxillama as ox
from oxillama.core.results import CancelToken
from oxillama.engine.async_engine import AsyncEngine
from oxillama.snapshot.format import codec as compression
from oxillama.snapshot.format.reader import ArrayRows, Contents, SnapshotReader
from oxillama.snapshot.format.source import MemorySource
from oxillama.snapshot.format.writer import packed
from tests.fakes import assert_idle, core_of
from tests.snapshot.models import load, tokens_of
from tests.snapshot.served import after_each

SETTINGS = {
    "plain": {"beam_width": 3, "max_new_tokens": 9},
    "one": {"beam_width": 1, "max_new_tokens": 5},
    "wide": {"beam_width": 11, "max_new_tokens": 6, "length_penalty": 0.3, "early_stopping": False},
    "grammar": {"beam_width": 4, "max_new_tokens": 12, "grammar": 'root ::= ("a" | "bc" | [d-g])+', "priority": 3},
    "biases": {"beam_width": 3, "max_new_tokens": 7, "logit_bias": {5: 3.0, 9: float("-inf")}, "banned_tokens": [7]},
}


def rounds_of(search):
    return [[(h.text, h.token_ids, h.score, h.logprob, h.finish_reason) for h in beams] for beams in search]


def state_of(data):
    return dict(SnapshotReader(MemorySource(data)).state)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", ["llama", "gemma3", "jamba", "mamba2", "gpt-oss"])
def test_a_search_saved_in_every_round_gives_the_same_result(name, settings):
    options = SETTINGS[settings]
    with load(name, context_size=128) as engine, load(name, num_threads=2, kv_block_size=32) as other:
        prompt = tokens_of(engine, 40, seed=1)
        whole = engine.beam_search(prompt, **options)
        rounds = rounds_of(engine.beam_rounds(prompt, **options))
        assert len(rounds) == options["max_new_tokens"] - 1  # the last one has no beams
        search = engine.beam_rounds(prompt, **options)
        for k in range(len(rounds) + 1):
            saved = search.snapshot()
            assert other.resume(saved).results() == whole, k
            assert rounds_of(other.resume(saved)) == rounds[k:]
            again = other.resume(saved)
            assert other.resume(again.snapshot()).results() == whole  # before it begins
            again.close()
            if k < len(rounds):
                next(search)
        assert search.results() == whole  # that it was saved makes no difference
        assert other.resume(search.snapshot()).results() == whole  # after its end
        for own in (engine, other):
            assert_idle(own)


def test_beams_that_have_ended_are_saved():
    """Of the model that ships, which ends texts: results that are found before are saved too."""
    options = {"beam_width": 6, "max_new_tokens": 30, "length_penalty": 1.0, "early_stopping": False}
    with ox.load(num_threads=1) as engine, ox.load(num_threads=2) as other:
        options["logit_bias"] = dict.fromkeys(engine.tokenizer.eog_ids, 5.0)
        prompt = "One day Tom was sad. He said: I am"
        whole, search = engine.beam_search(prompt, **options), engine.beam_rounds(prompt, **options)
        assert "stop" in {h.finish_reason for h in whole}
        n_found = []
        for _ in search:
            saved = search.snapshot()
            n_found.append(len(state_of(saved)["search"]["found"]))
            assert other.resume(saved).results() == whole
        assert n_found[0] < n_found[-1]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["llama", "gemma3", "jamba"])
def test_a_search_saved_in_the_middle_of_a_round_gives_the_same_result(name):
    """Where a step has room for some of the beams, or for a part of the prompt."""
    options = {"beam_width": 5, "max_new_tokens": 6, "cache_prompt": False}
    with load(name, prefill_chunk_size=2) as engine, load(name) as other:
        prompt = tokens_of(engine, 9, seed=2)
        whole = other.beam_search(prompt, **options)
        search = engine.beam_rounds(prompt, **options)
        found = after_each(engine, search, core_of(engine).scheduler, "advance")
        assert search.results() == whole
        del core_of(engine).scheduler.advance
        told = {tuple(t for _, t in state_of(saved)["search"]["beams"]) for saved in found}
        assert any(len(set(t)) == 2 for t in told)  # some of its beams have told, and others not
        assert (False,) in told
        for saved in found:
            for place in (engine, other):
                assert place.resume(saved).results() == whole


def test_a_search_saved_beside_others_and_without_room_gives_the_same_result():
    """In a cache that is full, what was computed is left out, and the results are the same."""
    options = {"beam_width": 3, "max_new_tokens": 20}
    with load("llama") as engine, load("llama", kv_budget=14 * 3 * 2 * 2 * 1024, context_size=128) as small:
        prompt = tokens_of(engine, 60, seed=8)
        whole, search = engine.beam_search(prompt, **options), engine.beam_rounds(prompt, **options)
        text = {"max_tokens": 30, "seed": 1, "ignore_eos": True}
        alone = small.generate(tokens_of(engine, 90, seed=9), **text).token_ids
        for k in range(4):
            next(search)
            stream = small.stream(tokens_of(engine, 90, seed=9), **text)
            first = list(next(stream).token_ids)
            assert small.resume(search.snapshot()).results() == whole, k
            assert first + [t for c in stream for t in c.token_ids] == alone
        assert_idle(small)


def test_searches_resume_from_files(tmp_path):
    options = SETTINGS["plain"]
    with load("llama") as engine:
        prompt = tokens_of(engine, 30, seed=3)
        whole, search = engine.beam_search(prompt, **options), engine.beam_rounds(prompt, **options)
        next(search), next(search)
        assert search.snapshot(tmp_path / "beams") is None
        info = ox.snapshot.snapshot_info(tmp_path / "beams")
        assert (info.kind, info.arch_id, info.tokens_count) == ("beams", "llama", 32)
        assert [name for name, _ in info.sections] == ["state", "beam.0", "beam.1", "beam.2"]
        assert engine.resume(tmp_path / "beams").results() == whole
        with ox.Engine.restore(tmp_path / "beams", engine) as restored:  # the session is the best beam
            assert restored.position == 32
            assert restored.resume(tmp_path / "beams").results() == whole
        search.close()
        with pytest.raises(ox.SnapshotError, match="a bundle of snapshots can't be a base"):
            engine.snapshot(tmp_path / "x", base=tmp_path / "beams")


@pytest.mark.skipif(not compression._library()[0], reason="there is no zstd")
def test_compressed_searches_resume():
    with load("llama") as engine:
        search = engine.beam_rounds([3, 4, 5], **SETTINGS["plain"])
        next(search)
        saved = search.snapshot_bytes(compress=True)
        assert engine.resume(saved).results() == search.results()


def test_a_search_that_ended_early_is_saved():
    with load("llama") as engine:
        search = engine.beam_rounds([3, 4, 5], **SETTINGS["plain"])
        beams = [next(search), next(search)][-1]
        search.close()
        assert [h.token_ids for h in search.results()] == [h.token_ids for h in beams]
        assert {h.finish_reason for h in search.results()} == {"cancelled"}
        assert engine.resume(search.snapshot()).results() == search.results()
        assert list(search) == []
        never = engine.beam_rounds([3, 4, 5])
        never.close()
        assert (list(never), never.results()) == ([], [])
        with engine.beam_rounds([3, 4, 5]) as left:
            next(left)
        assert list(left) == []
        assert_idle(engine)


def test_a_resumed_search_can_be_ended_before_its_first_round():
    """It ends where it was saved, as the saved one does."""
    with load("llama") as engine:
        search = engine.beam_rounds([3, 4, 5], **SETTINGS["plain"])
        next(search), next(search)
        resumed = engine.resume(search.snapshot())
        for one in (search, resumed):
            one.close()
        assert len(resumed.results()) == 3
        assert resumed.results() == search.results() == engine.resume(resumed.snapshot()).results()
        assert list(resumed) == []
        never = engine.resume(resumed.snapshot()), engine.beam_rounds([3, 4, 5])
        assert_idle(engine)
    for one in never:
        one.close()


def test_a_resumed_search_on_a_closed_engine_raises():
    with load("llama") as engine:
        search = engine.beam_rounds([3, 4, 5], **SETTINGS["plain"])
        next(search)
        resumed = engine.resume(search.snapshot())
        (first, *_), core = resumed._search._live, core_of(engine)
        begin = first.begin

        def closing(sequence):
            core.shut(lambda: None)
            begin(sequence)

        first.begin = closing
        with pytest.raises(ox.EngineClosedError):
            resumed.results()
        with pytest.raises(ox.EngineClosedError):
            search.snapshot()
        with pytest.raises(ox.EngineClosedError):
            search.results()


def test_a_cancel_token_and_a_deadline():
    with load("llama") as engine:
        search = engine.beam_rounds([3, 4, 5], beam_width=2, max_new_tokens=50, deadline=1000.0)
        next(search)
        saved, token = search.snapshot(), CancelToken()
        assert 0 < state_of(saved)["search"]["seconds_left"] < 1000
        resumed = engine.resume(saved, cancel_token=token)
        beams = next(resumed)
        token.cancel()
        assert [h.token_ids for h in resumed.results()] == [h.token_ids for h in beams]
        assert {h.finish_reason for h in resumed.results()} == {"cancelled"}
        late = changed(saved, lambda s: s["search"].update(seconds_left=1e-6))
        assert {h.finish_reason for h in engine.resume(late).results()} == {"deadline"}
        search.close()
        assert_idle(engine)


def test_a_dead_end_is_saved():
    """Where nothing can follow any beam; a search that has failed can't be saved."""
    with load("llama") as engine, load("llama") as other:
        banned = [i for i in range(engine.n_vocab) if b"z" in engine.tokenizer.token_bytes(i)]
        search = engine.beam_rounds(
            [3, 4], beam_width=2, max_new_tokens=9, grammar='root ::= "abcz"', banned_tokens=banned
        )  # fmt: skip
        next(search)
        found = after_each(engine, search, search._search, "hear")
        with pytest.raises(ox.GenerateError, match="no token") as own:
            search.results()
        assert any(state_of(saved)["search"]["dead_end"] for saved in found)
        for saved in found:
            with pytest.raises(ox.GenerateError) as again:
                other.resume(saved).results()
            assert str(again.value) == str(own.value)
        with pytest.raises(ox.GenerateError, match="no token"):
            search.snapshot()
        for place in (engine, other):
            assert_idle(place)


def changed(data, change):
    """With another description, signed."""
    reader = SnapshotReader(MemorySource(data))
    state = json.loads(json.dumps(dict(reader.state)))
    del state["tensors"]
    change(state)
    return packed(Contents(state, {name: ArrayRows.whole(reader.array(name)) for name in reader.ranges}))


BAD = {
    "limit": [0, 10**9, "9"],
    "beam_width": [0, 2, 10**6, 2.0],
    "length_penalty": [33, None, "x", 10**400],
    "early_stopping": [1],
    "ignore_eos": [None],
    "priority": [101, -1],
    "seconds_left": [-1.0, "x", 10**400],
    "shaping": [{"temperature": 0.5}, {"grammar": "root ::="}, {"choices": ["z"]}, [], {"banned_tokens": [-1]}],
    "over": [None],
    "found": [
        [[0.0, [999], "stop"]], [[0.0, [1], "so"]], [[0.0, [1]]], [[0.0, [], "stop"]] * 4, [["x", [], "stop"]],
        [[10**400, [], "stop"]],
    ],
    "candidates": [[[0.0, 0, 5]], [[0.0, 9, 5]], [[0.0, 0]], {}],
    "beams": [[], [[0.0, False]], [[0.0, 1]] * 3, [[0.0, True]] * 3, [[None, False]] * 3],
    "dead_end": [["x"], [1, 2], "x", [True, "\x1b[2J"], [False, "x" * 1001]],
}  # fmt: skip


def test_damaged_search_states_are_refused():
    with load("llama") as engine:
        search = engine.beam_rounds([3, 4, 5], **SETTINGS["plain"])
        next(search), next(search)
        saved = search.snapshot()
        for name, values in BAD.items():
            for value in values:
                bad = changed(saved, lambda s, name=name, value=value: s["search"].update({name: value}))
                with pytest.raises(ox.SnapshotError):
                    engine.resume(bad)
            if name not in ("seconds_left", "dead_end"):  # which may be null
                with pytest.raises(ox.SnapshotError):
                    engine.resume(changed(saved, lambda s, name=name: s["search"].pop(name)))
        for at in range(0, len(saved), len(saved) // 90):
            bad = bytearray(saved)
            bad[at] ^= 1
            with pytest.raises(ox.SnapshotError):
                engine.resume(bytes(bad))
        search.close()
        assert_idle(engine)


def test_beams_that_do_not_belong_together():
    with load("llama") as engine, load("llama", context_size=16) as small:
        found = []
        for prompt, n in (([3, 4, 5], 1), ([3, 4, 5], 2), ([3, 9, 5], 2)):
            search = engine.beam_rounds(prompt, **SETTINGS["plain"])
            for _ in range(n):
                next(search)
            found.append(SnapshotReader(MemorySource(search.snapshot())))
            search.close()
        for other in (0, 2):
            tensors = {name: ArrayRows.whole(found[1].array(name)) for name in found[1].ranges}
            tensors["beam.1"] = ArrayRows.whole(found[other].array("beam.1"))
            state = {k: v for k, v in found[1].state.items() if k != "tensors"}
            with pytest.raises(ox.SnapshotDamagedError, match=r"several (lengths|prompts)"):
                engine.resume(packed(Contents(state, tensors)))
        alone = found[1].array("beam.0").tobytes()
        with pytest.raises(ox.SnapshotFormatError, match="one beam of a search"):
            engine.resume(alone)
        long = engine.beam_rounds([3, 4, 5], beam_width=2, max_new_tokens=40)
        next(long)
        with pytest.raises(ox.SnapshotMismatchError, match="context_size"):
            small.resume(long.snapshot())
        long.close()


def test_options_that_a_search_does_not_take_are_refused():
    with load("llama") as engine:
        search = engine.beam_rounds([3, 4, 5], **SETTINGS["plain"])
        next(search)
        saved = search.snapshot()
        for option in ({"sampler": ox.SamplerConfig()}, {"draft": "lookup"}, {"logits_processors": []}):
            with pytest.raises(ox.ConfigError, match=r"are for requests for text.*; this is of a beam"):
                engine.resume(saved, **option)
        with pytest.raises(ox.SnapshotFormatError, match=r"resume it with Engine\.resume"):
            asyncio.run(AsyncEngine(engine).resume(saved))
        with load("qwen2moe") as other, pytest.raises(ox.SnapshotMismatchError):
            other.resume(saved)
        search.close()


def test_scores_are_those_of_prefixes():
    """What is told of beams that grow is what an exhaustive sum says."""
    with load("llama") as engine, load("llama") as other:
        search = engine.beam_rounds([3, 4, 5], beam_width=3, max_new_tokens=6, length_penalty=0.5)
        for n, beams in enumerate(search, 1):
            for h in beams:
                rows = other.forward_logits([3, 4, 5, *h.token_ids])[2:-1].astype(np.float64)
                logprobs = rows - np.log(np.exp(rows).sum(1, keepdims=True))
                total = logprobs[np.arange(n), h.token_ids].sum()
                assert h.logprob == pytest.approx(total, rel=1e-5)
                assert h.score == h.logprob / n**0.5
