"""run(n) == run(k), saved, loaded and run(n - k), to the bit: sessions and requests, of every kind of state."""

import threading

import numpy as np
import pytest

import oxillama as ox
from oxillama.snapshot.capture import EMPTY_BASE
from oxillama.snapshot.format import codec as compression
from oxillama.snapshot.format.reader import ArrayRows
from oxillama.snapshot.format.writer import packed
from tests.fakes import core_of, factory_of, outbox_of, requests_of, sequence_of, session_of, snapshots_of
from tests.snapshot.contents import sections_of
from tests.snapshot.models import DECODERS, KINDS, load, same, tokens_of, told


@pytest.mark.sweep(40)
@pytest.mark.parametrize("name", DECODERS)
def test_every_architecture_resumes_with_the_same_bits(name):
    with load(name) as engine, load(name, num_threads=2, prefill_chunk_size=16) as other:
        tokens = tokens_of(engine, 44)
        engine.prefill(tokens[:21])
        saved = engine.snapshot_bytes()
        rows = [engine.forward_one(token) for token in tokens[21:30]]
        last = engine.prefill(tokens[30:])
        session = other.resume(saved)
        assert session.tokens == tokens[:21]
        assert sequence_of(session).n_computed == 21  # put back, not computed again
        other.prefill(tokens[::-1])
        assert all(same(session.forward_one(t), row) for t, row in zip(tokens[21:30], rows, strict=True))
        assert same(session.prefill(tokens[30:]), last)


@pytest.mark.parametrize("name", KINDS)
def test_results_depend_on_every_saved_array(name):
    """Each of a snapshot's arrays holds something that what follows depends on."""
    with load(name) as engine:
        tokens = tokens_of(engine, 30, seed=4)
        engine.prefill(tokens)
        maker, session = snapshots_of(engine), session_of(engine)
        row = engine.forward_one(5)
        engine.truncate(30)
        if sequence_of(session).n_computed < 30:
            engine.forward_prefill(tokens, 0)
        with maker.hold(session._take) as saved:
            whole = {name: rows.array for name, rows in saved.tensors.items()}
        for array in whole:
            if array in ("tokens", "logits") or not whole[array].size:  # keys of an index have no values
                continue
            saved.tensors = {n: ArrayRows(saved.tensors[n].start, saved.tensors[n].start, a) for n, a in whole.items()}
            saved.tensors[array].data = np.zeros_like(whole[array])
            with engine.resume(packed(saved)) as resumed:
                assert not same(resumed.forward_one(5), row), array


@pytest.mark.sweep(7)
@pytest.mark.parametrize("kv_type", ["f16", "f32", "q8_0", "q4_0"])
@pytest.mark.parametrize("name", KINDS)
def test_sessions_of_every_length_resume_with_the_same_bits(name, kv_type):
    with load(name, kv_type=kv_type) as engine, load(name, kv_type=kv_type, kv_block_size=64) as other:
        tokens = tokens_of(engine, 40, seed=1)
        rows = [engine.forward_one(token) for token in tokens]
        for k in range(1, 40):
            engine.truncate(0)
            engine.prefill(tokens[:k])
            with other.resume(engine.snapshot_bytes()) as session:
                assert same(session.logits, rows[k - 1])
                assert same(session.forward_one(tokens[k]), rows[k])


@pytest.mark.parametrize("name", ["gemma3", "cohere2", "gpt-oss", "exaone4", "granitehybrid", "nemotron_h"])
def test_windows_and_hybrids_resume_at_any_position(name):
    """Far beyond a window, in blocks of other sizes, and after going back."""
    with load(name, context_size=250) as engine, load(name, context_size=250, kv_block_size=32) as other:
        tokens = tokens_of(engine, 200, seed=2)
        for k in (100, 160, 191):
            engine.reset()
            engine.prefill(tokens[:k])
            saved = engine.snapshot_bytes()
            row = engine.prefill(tokens[k:])
            for place in (engine, other):
                with place.resume(saved) as session:
                    assert same(session.prefill(tokens[k:]), row)
                    assert same(session.forward_prefill(tokens[50:], 50), row)


SAMPLERS = {
    "default": {"seed": 3},
    "original": {"repetition_penalty": 1.1, "seed": 3},
    "greedy": {"temperature": 0.0},
    "mirostat": {"mirostat": 2, "seed": 4, "repetition_penalty": 1.3},
    "mirostat 1": {"mirostat": 1, "seed": 4},
    "dry": {"dry_multiplier": 0.8, "dry_sequence_breakers": ["a", [7]], "seed": 5, "temperature": 0.5},
    "cuts": {"xtc_probability": 0.5, "typical_p": 0.9, "top_a": 0.01, "min_p": 0.01, "top_n_sigma": 2.0, "seed": 6},
    "biases": {
        "logit_bias": {5: 2.0, 9: float("-inf")},
        "banned_tokens": [11, 12],
        "seed": 7,
        "frequency_penalty": 0.5,
    },
    "dynamic": {"dynatemp_range": 0.4, "dynatemp_exponent": 1.5, "seed": 8},
    "grammar": {"grammar": 'root ::= ("a" | "b" | "c ")+ [0-9]{4} "."', "seed": 9, "temperature": 1.5},
    "schema": {"json_schema": {"type": "array", "items": {"type": "integer"}, "minItems": 3}, "seed": 2},
    "regex": {"regex": "[a-f]{3}-[0-9]{10}x*", "seed": 1},
    "choices": {"choices": ["one and two", "one or two", "three"], "seed": 1},
}


@pytest.fixture(scope="module")
def pair():
    with load("llama") as engine, load("llama", num_threads=2, kv_block_size=32) as other:
        yield engine, other


def run(pair, start, **options):
    """The chunks of a whole run, and those of each that was saved after k of them and went on elsewhere."""
    engine, other = pair
    whole = list(start(engine, **options))
    for k in range(len(whole) + 1):
        stream = start(engine, **options)
        first = [next(stream) for _ in range(k)]
        saved = stream.snapshot()
        if k % 3 == 1:  # that it was saved makes no difference
            assert told(first + list(stream)) == told(whole)
        stream.close()
        resumed = other.resume(saved)
        assert told(other.resume(resumed.snapshot())) == told(other.resume(saved))  # before it begins
        rest = list(resumed)
        assert told(first + rest) == told(whole), k
        assert list(other.resume(resumed.snapshot())) == []  # after its end
    return whole


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_resumes_at_every_token(pair, name):
    prompt = tokens_of(pair[0], 21, seed=3)
    whole = run(pair, lambda e, **o: e.stream(prompt, **o), max_tokens=16, **SAMPLERS[name])
    assert sum(len(c.token_ids) for c in whole) > 1


def test_a_random_seed_is_saved_too(pair):
    engine, other = pair
    stream = engine.stream([1, 5, 9], max_tokens=30, ignore_eos=True)
    for _ in range(4):
        next(stream)
    saved = stream.snapshot()
    assert told(other.resume(saved)) == told(other.resume(saved)) == told(stream)


def test_partial_stop_strings_and_characters_are_saved():
    """Of the model that ships, whose tokens are bytes too: what is held back goes on being held back."""
    with ox.load(num_threads=1) as engine:
        text = engine.generate("Once upon a time", max_tokens=40, seed=1).text
        for stop in (text[30:37], text[20:60] + "no", "\u00e9\u00e8"):
            options = {"max_tokens": 25, "seed": 1, "stop": [stop, "never to be found"]}
            run((engine, engine), lambda e, **o: e.stream("Once upon a time", **o), **options)
        options = {"regex": "(é|è|漢|🙂){12}", "max_tokens": 30, "seed": 5, "temperature": 2.0}
        run((engine, engine), lambda e, **o: e.stream("Once", **o), **options)


def test_log_probabilities_are_saved(pair):
    prompt = tokens_of(pair[0], 20, seed=5)
    options = {"max_tokens": 6, "seed": 1, "logprobs": 3, "prompt_logprobs": 2, "ignore_eos": True}
    whole = run(pair, lambda e, **o: e.stream(prompt, **o), **options)
    assert whole[0].prompt_logprobs is not None


def test_each_of_several_completions_is_saved(pair):
    engine, other = pair
    prompt = tokens_of(engine, 20, seed=6)
    options = {"max_tokens": 9, "seed": 4, "n": 3, "ignore_eos": True}
    whole = list(engine.stream(prompt, **options))
    for k in (0, 1, 7):
        stream = engine.stream(prompt, **options)
        first = [next(stream) for _ in range(k)]
        for i in range(3):
            rest = list(other.resume(stream.snapshot(index=i)))
            assert told([c for c in first if c.index == i] + rest) == told([c for c in whole if c.index == i])
            assert all(c.index == i for c in rest)


@pytest.mark.parametrize("compress", [False, True])
def test_several_completions_are_saved_together(pair, compress, tmp_path):
    if compress and not compression._library()[0]:
        pytest.skip("there is no zstd")
    engine, other = pair
    prompt = tokens_of(engine, 20, seed=6)
    # The second ends first.
    options = {"max_tokens": 9, "seed": 4, "n": 3, "ignore_eos": True, "logprobs": 1}
    whole = list(engine.stream(prompt, **options))
    for k in range(0, len(whole) + 1, 4):
        stream = engine.stream(prompt, **options)
        first = [next(stream) for _ in range(k)]
        assert stream.snapshot(tmp_path / "all", compress=compress) is None
        resumed = other.resume(tmp_path / "all")
        some = [c for _, c in zip(range(3), resumed, strict=False)]
        again = engine.resume(resumed.snapshot())  # and once more, unread chunks and all
        resumed.close()
        rest = some + list(again)
        for i in range(3):
            found = [c for c in first + rest if c.index == i]
            assert told(found) == told([c for c in whole if c.index == i])
        assert told(first + list(stream)) == told(whole)  # it goes on unharmed


def test_several_completions_in_one_file(pair, tmp_path):
    engine, _ = pair
    prompt = tokens_of(engine, 20, seed=6)
    stream = engine.stream(prompt, n=2, max_tokens=8, seed=1, ignore_eos=True)
    next(stream)
    data = stream.snapshot_bytes()
    info = ox.snapshot.snapshot_info(data)
    assert (info.kind, info.arch_id, [name for name, _ in info.sections]) == (
        "texts", "llama", ["state", "text.0", "text.1"],
    )  # fmt: skip
    for option in ({"shared": True}, {"base": tmp_path / "before"}):
        with pytest.raises(ox.ConfigError, match="base and shared are for one completion: give index"):
            stream.snapshot(tmp_path / "x", **option)
    assert not list(tmp_path.iterdir())
    (tmp_path / "all").write_bytes(data)
    with pytest.raises(ox.SnapshotError, match="a bundle of snapshots can't be a base"):
        stream.snapshot(tmp_path / "x", index=0, base=tmp_path / "all")
    (tmp_path / "all").unlink()
    whole = told(stream)
    with ox.Engine.restore_bytes(data, engine) as restored:
        assert restored.position > len(prompt)
        assert told(restored.resume(data)) == whole
    sections, size = sections_of(data)  # between them are zeros that nothing reads
    for at in [*range(0, size, 30), *(s.offset + s.n_stored * i // 30 for s in sections for i in range(30))]:
        bad = bytearray(data)
        bad[at] ^= 1
        with pytest.raises(ox.SnapshotError):
            engine.resume(bytes(bad))


@pytest.mark.parametrize("name", ["llama", "jamba", "gemma3"])
def test_a_request_saved_in_the_middle_of_its_prompt_gives_the_same_text(name):
    """Saved by another thread while the prompt is computed, in chunks."""
    with load(name, prefill_chunk_size=16, context_size=250) as engine, load(name, context_size=250) as other:
        prompt = tokens_of(engine, 220, seed=7)
        options = {"max_tokens": 5, "seed": 2, "ignore_eos": True, "cache_prompt": False}
        whole = told(engine.stream(prompt, **options))
        found, computed = [], set()
        stream = engine.stream(prompt, **options)
        request = requests_of(stream)[0]
        core, advance = core_of(engine), core_of(engine).scheduler.advance

        def between_steps(sequence, n):
            advance(sequence, n)
            if len(found) < 9:  # a turn of the loop ends after this one
                core.loop.post(lambda: found.append(snapshots_of(engine).text(request, outbox_of(stream), EMPTY_BASE)))

        core.scheduler.advance = between_steps
        assert told(stream) == whole
        for saved in found:
            core.loop.post(saved.let_go)
            computed.add(saved.state["sequence"]["n_computed"])
            assert told(other.resume(packed(saved))) == whole
        assert len([n for n in computed if 0 < n < len(prompt)]) > 5


@pytest.mark.parametrize("name", ["llama", "mamba2", "gemma3"])
def test_a_save_does_not_disturb_other_requests(name):
    """Saved and resumed while others decode in the same steps; those notice nothing."""
    with load(name) as engine:
        prompts = [tokens_of(engine, 10 + 7 * i, seed=i) for i in range(4)]
        options = {"max_tokens": 30, "seed": 11, "ignore_eos": True}
        alone = [told(engine.stream(p, **options)) for p in prompts]
        found = {}

        def work(i):
            stream = engine.stream(prompts[i], **options)
            chunks = []
            for k in (5, 6, 9):
                chunks += [next(stream) for _ in range(k)]
                saved = stream.snapshot()
                stream.close()
                stream = engine.resume(saved)
            found[i] = told(chunks + list(stream))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found[i] for i in range(4)] == alone


def test_without_room_it_is_computed_again():
    """In a cache that is full of others, what was computed is left out, and the bits are the same."""
    with load("llama") as engine, load("llama", kv_budget=12 * 3 * 2 * 2 * 1024, context_size=128) as small:
        prompt = tokens_of(engine, 60, seed=8)
        options = {"max_tokens": 20, "seed": 3, "ignore_eos": True}
        whole = told(engine.stream(prompt, **options))
        stream = engine.stream(prompt, **options)
        first = [next(stream) for _ in range(4)]
        saved = stream.snapshot()
        mine = small.stream(tokens_of(engine, 90, seed=9), max_tokens=30, seed=1, ignore_eos=True)
        next(mine)
        resumed = small.resume(saved)
        assert told(first) + told(resumed) == whole
        list(mine)


@pytest.mark.parametrize("name", ["llama", "gemma3", "jamba"])
def test_blocks_stay_unchanged_while_they_are_written(name):
    """Its blocks are held: whatever the engine does meanwhile, the bytes are those of the moment."""
    with load(name, kv_budget=400_000) as engine:
        tokens = tokens_of(engine, 75, seed=1)
        engine.prefill(tokens)
        wanted = engine.snapshot_bytes()
        pool = core_of(engine).pool
        with snapshots_of(engine).hold(session_of(engine)._take) as saved:
            engine.forward_one(5)
            engine.reset()
            core_of(engine).scheduler.debug = True
            for i in range(4):
                engine.generate([tokens_of(engine, 90, seed=j + 4 * i) for j in range(4)], max_tokens=20, seed=1)
            engine.shrink_to_fit()
            assert packed(saved) == wanted
            assert pool.blocks.n_available < pool.blocks.n
        for group in (pool.blocks, pool.windowed, pool.slots):
            assert group.n_available == group.n
            group.check_invariants()


@pytest.mark.parametrize(
    "options", [{"seed": 3}, {"seed": 4, "mirostat": 2}, {"seed": 5, "grammar": 'root ::= [a-z ]+ "."'}]
)
def test_a_sampler_is_saved_with_its_session(options):
    """A loop of one's own, saved after each of its tokens."""

    def steps(session, n):
        found = []
        for _ in range(n):
            token = session.sampler.sample(session.logits)
            session.sampler.accept(token)
            session.forward_one(token)
            found.append(token)
        return found

    with load("llama") as engine, load("llama", num_threads=2) as other:
        prompt = tokens_of(engine, 20, seed=3)

        def begin():
            session = engine.session()
            session.prefill(prompt)
            session.sampler = factory_of(engine).plain_sampler(ox.SamplerChain.from_config(ox.SamplerConfig(**options)))
            return session

        whole = steps(begin(), 12)
        session = begin()
        for k in range(12):
            with other.resume(session.snapshot_bytes()) as resumed:
                assert steps(resumed, 12 - k) == whole[k:]
            steps(session, 1)
