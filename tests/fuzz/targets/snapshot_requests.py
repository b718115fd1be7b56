"""Snapshots of sessions and requests with every option whose state a file has, as seeds; and what goes on with them."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import oxillama as ox
from oxillama.sampling import Sampler
from tests.fakes import core_of, outbox_of
from tests.lora.files import linear_shapes, random_factors, write_adapter
from tests.snapshot.models import load, path_of
from tests.snapshot.served import after_each, options, say

PROMPT = list(range(3, 12))
LONG = [3 + i % 40 for i in range(75)]  # more than a block that is shared
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}]
REPEATED = [5, 9, 11, 7, 5, 9, 11, 7, 5, 9]


@cache
def engine(name, adapted=False):
    """adapted: with an adapter, which files that use it need."""
    own = load(name, context_size=96)
    if adapted:
        with TemporaryDirectory() as folder:
            shapes = linear_shapes(path_of(name))
            own.load_lora("a", write_adapter(Path(folder) / "a.gguf", name, random_factors(shapes, 2, 1), alpha=0.4))
    return own


def engine_for(name, data):
    return engine(name, b'"weights":[["' in data)


# Prompt, options, and how many chunks are read before it is saved.
REQUESTS = (
    (PROMPT, {"prompt_logprobs": 1, "logprobs": 2}, 2),
    (LONG, {"prompt_logprobs": 0, "priority": 3, "deadline": 1000.0, "prefill_first": True}, 0),
    (PROMPT, {"echo": True, "deadline": 1000.0, "deadline_from": "start", "ignore_eos": True}, 0),
    (PROMPT, {"stop": ["ab", "abc", "é"], "logit_bias": {5: 2.0, 7: float("-inf")}, "banned_tokens": [9]}, 3),
    (PROMPT, {"tool_use": "hermes"}, 2),
    (REPEATED, {"draft": "lookup", "num_speculative": 3, "adaptive": False}, 2),
    (REPEATED, {"draft": ["lookup", "grammar"], "acceptance": "rejection", "temperature": 1.0}, 2),
    (PROMPT, {"regex": "[a-f]{3}[0-9]*", "lora": [("a", 1.0)]}, 1),
    (PROMPT, {"json_schema": {"type": "array", "items": {"type": "integer"}, "minItems": 1}, "logprobs": 0}, 2),
    (PROMPT, {"dry_multiplier": 0.8, "dry_sequence_breakers": ["a", [7]], "mirostat": 1}, 3),
    (PROMPT, {"n": 3, "logprobs": 1, "prompt_logprobs": 1}, 2),
    (PROMPT, {"n": 2, "max_tokens": 1}, 0),
    (PROMPT, {"max_tokens": 1}, 0),
    (PROMPT, {"bad_words": ["ab", [5, 6]], "min_tokens": 3, "stop_token_ids": [9, 4], "include_stop": True}, 2),
    (PROMPT, {"allowed_token_ids": [*range(3, 40)], "stop": "zz", "min_tokens": 6, "ignore_eos": True}, 1),
    (LONG, {"max_tokens": 0, "prompt_logprobs": 1}, 0),
)


def requests(own):
    """Requests in the middle and before the beginning; of some, unread chunks."""
    for prompt, given, n_read in REQUESTS:
        asked = {"max_tokens": 7, "seed": 1, **given}
        asked.pop("prefill_first", None)
        if asked.get("tool_use"):
            asked["tool_use"] = ox.ToolUse("hermes", 1, TOOLS)
        stream = engine(own.model_config.arch, "lora" in asked).stream(prompt, **asked)
        for _ in range(n_read):
            next(stream)
        yield stream.snapshot()
        stream.close()
    yield unread(own)


def unread(own):
    """Ended, with unread chunks."""
    stream = own.stream(PROMPT, max_tokens=3, seed=1, n=2, logprobs=1)
    next(stream)
    while outbox_of(stream).n_open:
        core_of(own).step()
    saved = stream.snapshot()
    stream.close()
    return saved


def sessions(own):
    """A session with a sampler, one with adapters, one that has nothing, and dialogues."""
    yield own.snapshot_bytes()
    with engine(own.model_config.arch, True).session(lora=[("a", 0.5)], cache_salt="mine") as session:
        session.prefill(PROMPT)
        session.sampler = Sampler(ox.SamplerConfig(seed=3, mirostat=2), prompt=PROMPT)
        for _ in range(3):
            session.sampler.accept(7)
        yield session.snapshot_bytes()
    with own.session() as session:
        session.prefill(PROMPT)
        for _ in range(3):
            session.forward_one(session.sample(seed=1, regex="[a-z]+"))
        yield session.snapshot_bytes()
    with own.conversation() as talk:
        yield talk.snapshot_bytes()
        talk.messages.append({"role": "user", "content": "é"})
        say(talk, PROMPT)
        yield talk.snapshot_bytes()


def searches(own):
    """Searches before their first round, after some, with a grammar, after the last and without a way on."""
    for given, n_rounds in (
        ({"beam_width": 3, "max_new_tokens": 5}, 0),
        ({"beam_width": 2, "max_new_tokens": 4, "grammar": 'root ::= ("a" | "bc")+', "length_penalty": 0.5}, 2),
        ({"beam_width": 2, "max_new_tokens": 3, "priority": 2, "deadline": 1000.0}, 9),
        ({"beam_width": 2, "max_new_tokens": 6, "regex": "ab", "early_stopping": False}, 9),
        ({"beam_width": 2, "max_new_tokens": 5, "bad_words": ["a"], "stop_token_ids": [5, 9], "min_tokens": 2}, 1),
    ):
        search = own.beam_rounds(PROMPT, **given)
        for _, _ in zip(range(n_rounds), search, strict=False):
            pass
        yield search.snapshot()
        search.close()
    yield within_a_round(own.model_config.arch)


@cache
def within_a_round(name):
    """Some beams have told their candidates, and others not."""
    with load(name, prefill_chunk_size=2, context_size=96) as small:
        search = small.beam_rounds(PROMPT, beam_width=3, max_new_tokens=4)
        found = after_each(small, search, core_of(small).scheduler, "advance")
        search.results()
        del core_of(small).scheduler.advance
    return next(data for data in found if b"true]," in data and b"false]" in data)


def dialogue(own, place):
    """The same answer each time, also from what is saved of it."""
    answers = []
    for _ in range(2):
        with own.resume(place) as talk:
            again, prompt = talk.snapshot_bytes(), [*talk.tokens, 5]
            answers.append([c.token_ids for c in talk.stream(prompt, options(seed=2))])
    with own.resume(again) as talk:
        answers.append([c.token_ids for c in talk.stream(prompt, options(seed=2))])
    assert answers[0] == answers[1] == answers[2]
    yield "a dialogue"
