"""Fields of a snapshot that don't fit each other, under right hashes: refused before anything runs.

`python -m tests.snapshot.states` changes every value of every kind of snapshot in every way.
"""

import random
from functools import cache

import pytest

import oxillama as ox
from oxillama.chat.tool_format import ToolFormat
from oxillama.errors import ConfigError, SnapshotDamagedError, SnapshotError
from oxillama.snapshot.format.reader import SnapshotReader
from oxillama.snapshot.format.source import MemorySource
from tests.fuzz.targets import snapshot
from tests.fuzz.targets.json_values import at, places
from tests.fuzz.targets.snapshot_folders import FOLDER
from tests.fuzz.targets.snapshot_requests import PROMPT, REQUESTS, engine, engine_for, requests, searches, unread
from tests.fuzz.targets.snapshot_states import assembled, part_of, replaced, restated, variants, with_part
from tests.snapshot.states import fault


@cache
def saved(kind):
    own = engine("llama")
    if kind == "unread":
        return unread(own)
    if kind.startswith("search"):
        return list(searches(own))[int(kind[-1])]
    return list(requests(own))[int(kind)]


def changed(data, *changes):
    """Values by path; a function gets what was there."""

    def change(state):
        for path, value in changes:
            path = tuple(int(key) if key.isdecimal() else key for key in path.split("."))
            state = replaced(state, path, value(at(state, path)) if callable(value) else value)
        return state

    return restated(data, change)


# Of requests by their number in REQUESTS: changes, and the error.
LOGPROBS, ECHO, STOPS, GRAMMAR, MANY, ONE = "0", "2", "3", "8", "10", "12"
TEXTS = [
    (STOPS, ["text.prompt_logprobs", 1], "scores must be there if"),
    (STOPS, ["text.logprobs", 0], "scores must be there if"),
    (LOGPROBS, ["text.scores", None], "scores must be there if"),
    (LOGPROBS, ["text.scores.prompt", [None]], "prompt must be log-probabilities of 9 to 9 tokens"),
    (LOGPROBS, ["text.scores.prompt", lambda p: p[:-1]], "prompt must be log-probabilities of 9 to 9 tokens"),
    (LOGPROBS, ["text.scores.prompt.0", lambda p: [5, -1.0]], "the first null"),
    (LOGPROBS, ["text.scores.prompt.3.0", lambda token: token + 1], "prompt must be log-probabilities of"),
    (LOGPROBS, ["text.scores.tokens.0.0", lambda token: token ^ 1], "tokens must be log-probabilities of"),
    (LOGPROBS, ["text.logprobs", 1], "with the 1 likeliest"),
    (STOPS, ["text.limit", len(PROMPT) + 1], r"limit must be more than its \d+ tokens, not 10"),
    (STOPS, ["text.finished", "length"], "with nothing computed, as it has finished"),
    (STOPS, ["text.finished", ["stop"]], "finished must be a reason to finish"),
    (STOPS, ["text.n_shown", 9], "n_shown must be "),
    (STOPS, ["text.n_shown", True], "n_shown must be "),
    (STOPS, ["text.held", "ab"], "held must be ''"),
    (STOPS, ["text.stops", [""]], "stop must hold strings of at least one character"),
    (STOPS, ["text.stops", ["ﬃ", *map(chr, range(33, 127)), "\ufffd"]], "stops must be none that its text has already"),
    (STOPS, ["text.echo", "once"], "echo must be null: a part of the text is there"),
    (STOPS, ["sampler.n_prompt", 8], "n_prompt must be 9"),
    (STOPS, ["unknown_tokens", 1], "unknown_tokens must be true or false"),
    (STOPS, ["text.number", 5000], "number must be an integer from 0 to 1023"),
    (GRAMMAR, ["sampler.grammar_steps", lambda n: n + 1], "the state of its grammar is not the one"),
    (GRAMMAR, ["sampler.config.json_schema", None], "the state of its grammar is not the one"),
    (STOPS, ["engine.num_threads", "2"], "num_threads must be an integer"),
    (STOPS, ["engine.context_size", 0], "context_size must be an integer"),
]


@pytest.mark.parametrize(("kind", "change", "message"), TEXTS)
def test_inconsistent_requests_are_refused(kind, change, message):
    with pytest.raises(SnapshotDamagedError, match=message):
        engine("llama").resume(changed(saved(kind), tuple(change)))


def test_an_end_token_inside_the_text_is_refused():
    """That would have ended it."""
    with ox.load(num_threads=1) as own:
        end = min(own.tokenizer.eog_ids)
        stream = own.stream("Once", max_tokens=9, seed=1, ignore_eos=True, logit_bias={end: 100.0})
        assert next(stream, None) is not None
        data = changed(stream.snapshot(), ("text.ignore_eos", False))
        with pytest.raises(SnapshotDamagedError, match=r"token 0 of its text is \d+, which ends a text"):
            own.resume(data)


PARTS = [
    ("text.unread.0.ids.0", lambda token: token ^ 1, "unread must be the last of its"),
    ("text.unread.0.ids", lambda ids: ids[:-1], "unread must be the last of its|log-probabilities of the same tokens"),
    ("text.unread.0.index", 7, "unread must be chunks of completion"),
    ("text.unread.0.reason", "stop", "unread must be chunks of completion|reason"),
    ("text.unread.0.logprobs", None, "the log-probabilities of the same tokens"),
    ("text.unread.0.logprobs.0.1", -0.5, "the log-probabilities of the same tokens"),
    ("text.number", 3, "number must be 1, its place|unread must be chunks"),
    ("text.finished", None, "unread|n_shown|limit"),
    ("sequence.n_prompt", 8, "n_prompt|prompts"),
]


@pytest.mark.parametrize(("path", "value", "message"), PARTS)
def test_inconsistent_completions_of_one_prompt_are_refused(path, value, message):
    data = saved("unread")
    part = changed(part_of(data, "text.1"), (path, value))
    with pytest.raises(SnapshotDamagedError, match=message):
        engine("llama").resume(with_part(data, "text.1", part))


def test_inconsistent_ends_of_texts_are_refused():
    data = saved("unread")
    for path, value in (
        ("usage", [9, 3, 9]),
        ("usage.0", 5),
        ("stop_reason", "x"),
        ("stop_reason", 5),
        ("end", [5, -1.0]),
    ):
        state = part_of(data, "text.1")
        n = len(at(state_of(state), ("text", "unread")))
        part = changed(state, (f"text.unread.{n - 1}.{path}", value))
        with pytest.raises(SnapshotDamagedError, match="unread must be"):
            engine("llama").resume(with_part(data, "text.1", part))


def state_of(data):
    found = {}
    restated(data, lambda state: found.update(state) or state)
    return found


def test_completions_of_several_prompts_are_refused():
    own = engine("llama")
    streams = [own.stream(prompt, max_tokens=3, seed=1, n=2) for prompt in (PROMPT, PROMPT[::-1])]
    data, other = (stream.snapshot() for stream in streams)
    with pytest.raises(SnapshotDamagedError, match="its completions are of several prompts"):
        own.resume(with_part(data, "text.1", part_of(other, "text.1")))


SEARCHES = [
    ("search.candidates", lambda c: [*c, c[0]], "candidates must be (different ones|at most)"),
    ("search.candidates.0.1", 9, "candidates must be tokens after beams"),
    (
        "search.beams",
        lambda b: [[b[i][0], b[j][1]] for j, i in enumerate((2, 1, 0))],
        "beams must be the likeliest first",
    ),
    ("search.length_penalty", 1e308, "length_penalty"),
]


@pytest.mark.parametrize(("path", "value", "message"), SEARCHES)
def test_inconsistent_searches_are_refused(path, value, message):
    with pytest.raises(SnapshotDamagedError, match=message):
        engine("llama").resume(changed(saved("search5"), (path, value)))


def test_beams_with_too_many_computed_tokens_are_refused():
    """Found before the search has begun to run."""
    data = saved("search1")
    for name in ("beam.0", "beam.1"):
        part = changed(part_of(data, name), ("sequence.n_computed", lambda n: n + 5))
        with pytest.raises(SnapshotDamagedError, match="n_computed must be an integer from 0 to"):
            engine("llama").resume(with_part(data, name, part))


def test_a_sampler_of_other_tokens_is_refused():
    own = engine("llama")
    with own.session() as session:
        session.prefill(PROMPT)
        session.forward_one(session.sample(seed=1))
        data = session.snapshot_bytes()
        with own.session() as other:
            other.prefill(PROMPT[::-1])
            other.forward_one(other.sample(seed=1))
            there = SnapshotReader(MemorySource(other.snapshot_bytes()))
    with own.resume(data) as session:
        assert session.sample() in range(own.n_vocab)
    reader = SnapshotReader(MemorySource(data))
    stored = {s.name: bytes(data[s.offset : s.offset + s.n_stored]) for s in reader.sections.values()}
    stored["history"] = there.array("history").tobytes()
    with pytest.raises(SnapshotDamagedError, match="its sampler goes with other tokens than it has"):
        own.resume(assembled(reader, stored))
    stored["history"] = b"\xff\xff\xff\x7f" * (len(PROMPT) + 1)
    with pytest.raises(SnapshotDamagedError, match="tokens of its sampler are not all from 0 to"):
        own.resume(assembled(reader, stored))


@pytest.mark.parametrize("scale", [1e308, -1e308, 1e39])
def test_invalid_scales_of_adapters_are_refused(scale):
    """Beyond what a float32 can be."""
    data = saved("7")
    with pytest.raises(SnapshotDamagedError, match=r"its adapters: scale of [0-9a-f]{16}. must be"):
        engine_for("llama", data).resume(changed(data, ("sequence.weights.0.1", scale)))


def test_texts_that_are_not_unicode_are_refused():
    """Halves of surrogate pairs, which JSON can say."""
    with pytest.raises(ConfigError, match=r"dry_sequence_breakers\[0\] must be Unicode"):
        ox.SamplerConfig(dry_sequence_breakers=["\ud800"])
    for name in ("begin", "end", "separator", "between"):
        with pytest.raises(ox.ToolFormatError, match=f"{name} must be Unicode"):
            ToolFormat(**{"begin": "<a>", "end": "</a>", name: "<\udfff>"})
    data = changed(saved("4"), ("text.tools.format.begin", "\ud800"))
    with pytest.raises(SnapshotDamagedError, match="calls of tools: begin must be Unicode"):
        engine("llama").resume(data)


def test_all_kinds_of_requests_are_tested():
    assert len(list(requests(engine("llama")))) == len(REQUESTS) + 1


@pytest.mark.parametrize("seed", range(4))
def test_random_changes_are_refused_or_resume_alike(seed):
    """Of any value of any kind."""
    draw = random.Random(seed)
    seeds = [data for data in snapshot.seeds() if not data.startswith(FOLDER) and data[:9] == b"OXISNAP1\2"]
    for _ in range(100):
        data = draw.choice(seeds)
        state = state_of(data)
        path = draw.choice(list(places(state)))
        value = draw.choice(variants(at(state, path)))
        try:
            new = restated(data, lambda state, path=path, value=value: replaced(state, path, value))
        except (SnapshotError, TypeError, ValueError):
            continue
        assert fault(new) is None, (path, value)
