"""Batches of any length, on the fake model: results as alone, bounded memory, errors and leaving early."""

import gc
import itertools
import threading
from dataclasses import replace

import pytest

import oxillama as ox
from oxillama.core.batch import BatchPrompt
from oxillama.core.results import BatchFailure, CancelToken
from oxillama.errors import ConfigError, EngineClosedError, KvCacheFullError, SnapshotError
from tests.core.batches import BAD, KINDS, PROMPTS, Source, alone
from tests.fakes import assert_idle, core_of, make_engine, runner_of


@pytest.fixture(autouse=True)
def collecting(monkeypatch):
    """Nobody here is away for so long that the engine's own thread begins, however busy the machine."""
    monkeypatch.setattr("oxillama.core.batch.AWAY_SECONDS", float("inf"))


def test_results_in_order_are_those_of_each_alone():
    engine = make_engine()
    found = list(engine.batch(iter(PROMPTS), max_tokens=12, seed=1))
    assert [r.token_ids for r in found] == [alone(p) for p in PROMPTS]
    assert [r.index for r in found] == list(range(50))
    assert max(len(s) for s in runner_of(engine).steps) > 3
    assert_idle(engine)


def test_results_as_they_finish():
    engine = make_engine()
    found = list(engine.batch(PROMPTS, ordered=False, max_tokens=12, seed=1))
    assert sorted(r.index for r in found) == list(range(50))
    assert [r.index for r in found] != list(range(50))  # some texts end early
    assert all(r.token_ids == alone(PROMPTS[r.index]) for r in found)
    assert_idle(engine)


def test_texts_and_lists_know_their_index():
    engine = make_engine()
    assert [r.text for r in engine.batch(("a", "b"), max_tokens=5, seed=1)] == [
        r.text for r in engine.generate(["a", "b"], max_tokens=5, seed=1)
    ]
    assert [r.index for r in engine.generate(["a", "b"], max_tokens=1)] == [0, 1]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("bound", [1, 5])
def test_memory_is_bounded(ordered, bound):
    engine = make_engine()
    source = Source(itertools.cycle(PROMPTS))  # endless
    batch = engine.batch(source, ordered=ordered, max_in_flight=bound, max_tokens=12, seed=1)
    assert source.taken == 0
    for given in range(1, 60):
        r = next(batch)
        assert r.token_ids == alone(PROMPTS[r.index % 50])
        assert source.taken - (given - 1) <= bound
        assert len(batch._pipeline._in_flight) < bound
    assert source.threads == {threading.get_ident()}
    batch.close()
    batch.close()
    assert list(batch) == []
    assert_idle(engine)


def test_a_long_one_first_holds_nothing_but_order_up():
    engine = make_engine(n_blocks=40)
    prompts = [([5], 40), *(([3 + i], 1) for i in range(6))]

    def first_of(ordered):
        batch = engine.batch([p for p, _ in prompts], ordered=ordered, max_tokens=40, seed=1, stop="a")
        return [r.index for r in batch]

    assert first_of(True) == list(range(7))
    assert sorted(first_of(False)) == list(range(7))


@pytest.mark.parametrize("leave", ["close", "drop", "with", "break"])
def test_leaving_early_frees_everything(leave):
    engine = make_engine()
    batch = engine.batch(itertools.repeat([3, 4]), max_tokens=12)
    next(batch)
    assert core_of(engine).scheduler.running or core_of(engine).scheduler.waiting
    if leave == "close":
        batch.close()
    elif leave == "with":
        with batch:
            pass
    elif leave == "break":
        for _ in batch:
            break
    del batch
    gc.collect()
    assert_idle(engine)
    assert not core_of(engine).scheduler.waiting


def test_errors_in_their_places():
    engine = make_engine()
    found = list(engine.batch(BAD, errors="yield", max_tokens=12, seed=1))
    assert {i: type(r.error) for i, r in enumerate(found) if isinstance(r, BatchFailure)} == KINDS
    assert all(r.index == i for i, r in enumerate(found))
    assert [found[i].token_ids for i in (0, 3, 7)] == [alone([3]), alone([4]), alone([5])]
    assert "prompts[1]" in str(found[1].error)
    unordered = list(engine.batch(BAD, errors="yield", ordered=False, max_tokens=12, seed=1))
    assert {r.index: type(r.error) for r in unordered if isinstance(r, BatchFailure)} == KINDS
    assert_idle(engine)


@pytest.mark.parametrize("ordered", [True, False])
def test_after_an_error_the_others_are_still_there(ordered):
    engine = make_engine()
    batch, tokens, errors = engine.batch(BAD, ordered=ordered, max_tokens=12, seed=1), {}, []
    while True:
        try:
            r = next(batch)
        except StopIteration:
            break
        except Exception as error:
            errors.append(type(error))
        else:
            tokens[r.index] = r.token_ids
    assert tokens == {0: alone([3]), 3: alone([4]), 7: alone([5])}
    assert sorted(e.__name__ for e in errors) == sorted(e.__name__ for e in KINDS.values())
    assert_idle(engine)


def test_one_that_never_fits_the_cache():
    engine = make_engine(n_blocks=2)
    found = list(engine.batch([[3] * 20, [3] * 40, [4]], errors="yield", max_tokens=12, seed=1))
    assert [type(r) for r in found] == [ox.Completion, BatchFailure, ox.Completion]
    assert isinstance(found[1].error, KvCacheFullError)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_queue_with_little_room(ordered):
    engine = make_engine(max_queue_size=3, n_blocks=2)
    found = list(engine.batch(PROMPTS, ordered=ordered, max_tokens=12, seed=1))
    assert {r.index: r.token_ids for r in found} == {i: alone(p) for i, p in enumerate(PROMPTS)}
    assert_idle(engine)


def test_a_failing_step_fails_only_what_it_computed():
    def hook(runner, spans, poll):
        if len(runner.steps) == 3:
            runner.steps.append([])
            raise ValueError("the model is broken")

    engine = make_engine(hook=hook)
    found = list(engine.batch(PROMPTS, max_in_flight=4, errors="yield", max_tokens=12, seed=1))
    failed = [r for r in found if isinstance(r, BatchFailure)]
    assert 1 <= len(failed) <= 4
    assert all(r.token_ids == alone(PROMPTS[r.index]) for r in found if r not in failed)
    assert_idle(engine)


def test_an_error_of_the_source_comes_after_the_results_before_it():
    def prompts():
        yield from PROMPTS[:5]
        raise OSError("the disk is gone")

    engine = make_engine()
    batch = engine.batch(prompts(), max_tokens=12, seed=1)
    assert [next(batch).token_ids for _ in range(5)] == [alone(p) for p in PROMPTS[:5]]
    with pytest.raises(OSError, match="disk"):
        next(batch)
    assert list(batch) == []
    assert_idle(engine)


def test_a_cancel_token_ends_the_batch():
    engine, token = make_engine(), CancelToken()
    source = Source(itertools.repeat([3, 4]))
    batch = engine.batch(source, max_in_flight=30, ignore_eos=True, max_tokens=12, seed=1, cancel_token=token)
    next(batch)
    token.cancel()
    rest = list(batch)
    assert len(rest) == source.taken - 1 == 29
    assert {r.finish_reason for r in rest} <= {"cancelled", "length"}
    assert rest[-1].finish_reason == "cancelled"
    assert_idle(engine)


def test_close_ends_the_batch():
    engine = make_engine()
    batch = engine.batch(itertools.repeat([3]), errors="yield", max_tokens=12)
    next(batch)
    engine.close()
    with pytest.raises(EngineClosedError):
        list(batch)
    assert list(batch) == []
    with pytest.raises(EngineClosedError):
        engine.batch([[3]])


def test_progress_is_told():
    engine, told = make_engine(), []
    list(engine.batch(PROMPTS[:3], max_tokens=2, progress=lambda *given: told.append(given)))
    list(engine.batch(iter(PROMPTS[:2]), max_tokens=2, progress=lambda *given: told.append(given)))
    assert told == [(1, 3), (2, 3), (3, 3), (1, None), (2, None)]


def test_progress_as_a_bar(capsys):
    pytest.importorskip("tqdm")
    list(make_engine().batch(PROMPTS[:3], max_tokens=2, progress=True))
    assert "3/3" in capsys.readouterr().err


def test_a_raising_progress_harms_no_other_request():
    engine = make_engine()
    other = engine.stream([5], max_tokens=12, seed=1)
    first = next(other)
    with pytest.raises(ZeroDivisionError):
        list(engine.batch(PROMPTS, max_tokens=2, progress=lambda *given: 1 / 0))
    assert [t for c in (first, *other) for t in c.token_ids] == alone([5])
    assert_idle(engine)


def test_the_engine_may_be_used_between_results_and_by_the_source():
    engine = make_engine()

    def prompts():
        for p in PROMPTS[:8]:
            assert engine.generate([6], max_tokens=5, seed=1).token_ids == alone([6], 5)
            yield p

    found = []
    for r in engine.batch(prompts(), max_in_flight=3, max_tokens=12, seed=1):
        found.append(r.token_ids)
        assert engine.embed([3, 4]).shape == (8,)
    assert found == [alone(p) for p in PROMPTS[:8]]
    assert_idle(engine)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompts": "abc"}, "iterable of prompts, not str"),
        ({"prompts": 7}, "iterable of prompts, not int"),
        ({"max_in_flight": 0}, "max_in_flight must be from 1"),
        ({"ordered": 1}, "ordered"),
        ({"errors": "ignore"}, "errors"),
        ({"progress": "yes"}, "progress"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ""}, "stop"),
    ],
)
def test_bad_arguments(given, message):
    with pytest.raises(ConfigError, match=message):
        make_engine().batch(**{"prompts": [[3]], **given})


def test_unknown_options_and_callbacks_of_single_calls():
    for name in ("temprature", "on_token"):
        with pytest.raises(TypeError, match=name):
            make_engine().batch([[3]], **{name: None})


def test_the_shipped_model():
    prompts = ["Once upon a time", "The cat", "In the morning, the old man went to the", "A"] * 3
    with ox.load(num_threads=1) as engine:
        expected = [engine.generate(p, max_tokens=16, seed=7).token_ids for p in prompts]
        assert [r.token_ids for r in engine.batch(prompts, max_tokens=16, seed=7)] == expected
        found = {r.index: r.token_ids for r in engine.batch(prompts, ordered=False, max_tokens=16, seed=7)}
        assert [found[i] for i in range(len(prompts))] == expected


def test_a_cancel_token_ends_what_the_queue_had_no_room_for():
    engine, token = make_engine(max_queue_size=3, n_blocks=2), CancelToken()
    batch = engine.batch(itertools.repeat([3, 4]), max_tokens=12, cancel_token=token)
    next(batch)
    assert batch._pipeline._held is not None
    token.cancel()
    assert [r.finish_reason for r in batch][-1] == "cancelled"
    assert_idle(engine)
    assert not core_of(engine).scheduler.waiting


def test_it_can_not_be_saved_and_says_what_to_do():
    engine = make_engine()
    batch = engine.batch(PROMPTS, max_tokens=12, seed=1)
    found = [next(batch) for _ in range(3)]
    with pytest.raises(SnapshotError, match="prompts that have none to a new batch"):
        batch.snapshot("path", compress=True)
    batch.close()
    found += engine.batch(PROMPTS[3:], max_tokens=12, seed=1)
    assert [r.token_ids for r in found] == [alone(p) for p in PROMPTS]


def test_prompts_have_options_of_their_own():
    engine = make_engine()
    own = [{}, {"seed": 2}, {"max_tokens": 3, "stop": ["h"]}, {"temperature": 0.0}, {"logprobs": 1}, {"lora": []}]
    found = list(engine.batch([BatchPrompt([3, 4], options) for options in own], max_tokens=8, seed=1))
    expected = [engine.generate([3, 4], **{"max_tokens": 8, "seed": 1, **options}) for options in own]
    assert found == [replace(completion, index=i) for i, completion in enumerate(expected)]
    assert len({completion.text for completion in found}) > 2
    assert_idle(engine)


@pytest.mark.parametrize(
    "own", [{"seed": -1}, {"n": 2}, {"cancel_token": CancelToken()}, {"no": 1}, {"errors": "raise"}]
)
def test_wrong_options_of_a_prompt_are_its_result(own):
    engine = make_engine()
    prompts = [[3], BatchPrompt([3], own), [3]]
    first, failed, last = engine.batch(prompts, max_tokens=4, seed=1, errors="yield")
    assert isinstance(failed, BatchFailure)
    assert isinstance(failed.error, ConfigError | TypeError)
    assert first.token_ids == last.token_ids == alone([3], 4)
    assert_idle(engine)
