"""Results as dicts that json.dumps takes, of every kind and however they came about."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oxillama as ox
from oxillama._util.json_values import json_value
from oxillama.sampling import SamplerChain
from tests.fakes import EOS, make_engine

PLAIN = (type(None), bool, int, float, str, list, dict)
LOGPROB = {"token_id", "logprob", "bytes", "top", "text"}
USAGE = {"reasoning_tokens", "prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens"}


def dumped(result):
    """Its dict, of exactly the types of JSON, as it comes back from text."""
    found, todo = result.to_dict(), [result.to_dict()]
    while todo:
        item = todo.pop()
        assert type(item) in PLAIN, item
        todo += item.values() if isinstance(item, dict) else item if isinstance(item, list) else []
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return found


@pytest.mark.parametrize("logit_bias", [{}, {EOS: 1e9}])
def test_a_completion(logit_bias):
    engine = make_engine()
    asked = {"max_tokens": 6, "seed": 1, "logprobs": 2, "prompt_logprobs": 1, "draft": "lookup"}
    r = engine.generate("the bed", logit_bias=logit_bias, **asked)
    found = dumped(r)
    assert set(found) == {
        "text", "token_ids", "finish_reason", "stop_reason", "index", "logprobs", "prompt_logprobs", "end",
        "tool_calls", "usage", "timings", "speculation", "reasoning", "raw", "warnings",
    }  # fmt: skip
    for name in ("text", "token_ids", "finish_reason", "stop_reason", "index"):
        assert found[name] == getattr(r, name)
    assert found["usage"] == {"prompt_tokens": 5, "completion_tokens": len(r.token_ids), "cached_tokens": 0,
                              "reasoning_tokens": 0, "total_tokens": 5 + len(r.token_ids)}  # fmt: skip
    assert [p["token_id"] for p in found["logprobs"]] == r.token_ids
    assert found["prompt_logprobs"][0] is None
    assert set(found["prompt_logprobs"][1]) == LOGPROB
    assert found["timings"] == {"time_to_first_token": r.timings.time_to_first_token,
                                "prefill_seconds": r.timings.prefill_seconds,
                                "decode_seconds": r.timings.decode_seconds}  # fmt: skip
    assert found["speculation"]["rounds"] == r.speculation.rounds
    assert (found["end"] is None) == (not logit_bias)


def test_what_was_not_asked_for_is_none():
    found = dumped(make_engine().generate("the bed", max_tokens=2))
    assert [found[name] for name in ("logprobs", "prompt_logprobs", "end", "speculation")] == [None] * 4


def test_chunks():
    engine = make_engine()
    chunks = [dumped(c) for c in engine.stream("the bed", max_tokens=3, logprobs=0, ignore_eos=True)]
    assert set(chunks[0]) == {
        "text", "token_ids", "finish_reason", "logprobs", "prompt_logprobs", "index", "tool_calls", "stop_reason",
        "end", "usage", "reasoning", "tool_call_deltas", "raw", "warnings",
    }  # fmt: skip
    assert [set(c["usage"] or ()) for c in chunks] == [set()] * (len(chunks) - 1) + [USAGE]


def test_minus_infinity_is_none_and_bytes_are_integers():
    top = ox.TokenLogprob(np.int64(3), -math.inf, b"\xc3")
    assert dumped(ox.TokenLogprob(4, np.float32(-0.5), b"ab", (top,))) == {
        "token_id": 4, "text": "ab", "logprob": -0.5, "bytes": [97, 98],
        "top": [{"token_id": 3, "text": "\ufffd", "logprob": None, "bytes": [0xC3], "top": []}],
    }  # fmt: skip


def test_ids_that_a_stage_of_ones_own_gave_as_numpy_integers():
    chain = SamplerChain([lambda candidates, config, state: np.int64(4)])
    r = make_engine().generate("ab", max_tokens=3, sampler=chain, logprobs=0)
    assert dumped(r)["token_ids"] == [4, 4, 4]
    chain = SamplerChain([lambda candidates, config, state: np.int64(EOS)])
    assert dumped(make_engine().generate("ab", sampler=chain))["stop_reason"] == EOS


def test_calls_of_tools():
    call = ox.ToolCall("add", {"a": [1, 2.5], "ü": None}, "call00001", 3, "<raw>")
    broken = ox.BrokenToolCall("{", "it is no JSON", False, "call00002")
    assert dumped(call) == {
        "id": "call00001", "type": "function", "function": {"name": "add", "arguments": '{"a": [1, 2.5], "ü": null}'},
        "offset": 3, "raw": "<raw>",
    }  # fmt: skip
    assert dumped(broken) == {"type": "broken", "raw": "{", "error": "it is no JSON", "complete": False,
                              "id": "call00002", "offset": 0, "begun": False, "name": "",
                              "arguments": ""}  # fmt: skip
    r = ox.Completion("", [], "stop", 1, tool_calls=[call, broken])
    assert dumped(r)["tool_calls"] == [call.to_dict(), broken.to_dict()]


def test_beams_failures_and_stats():
    engine = make_engine()
    beams = engine.beam_search("ab", beam_width=2, max_new_tokens=3)
    assert set(dumped(beams[0])) == {"text", "token_ids", "score", "finish_reason", "logprob"}
    assert dumped(ox.BeamHypothesis("", [], -math.inf, None, -math.inf))["score"] is None
    (failure,) = engine.batch([[99]], errors="yield")
    assert dumped(failure) == {"index": 0, "error": {"type": "TokenizerError", "message": str(failure.error)}}
    assert dumped(ox.SpecStats(rounds=2))["rounds"] == 2


def test_ranked_documents():
    document = ox.RankedDocument(2, np.float32(0.5), np.array([0.5, -np.inf], np.float32))
    assert dumped(document) == {"index": 2, "score": 0.5, "scores": [0.5, None]}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_every_value_becomes_json(value):
    json.dumps(json_value(value), allow_nan=False)


def test_other_values_are_refused():
    with pytest.raises(TypeError, match="set has no form in JSON"):
        json_value([{1}])
