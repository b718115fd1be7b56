"""Deltas of answers: calls that can't be read between others, and how such answers end."""

import pytest

from oxillama.chat.calls import BrokenToolCall, ToolCall
from oxillama.chat.message import ToolCallDelta
from oxillama.core.results import Chunk
from oxillama.server.answers import Choice, DeltaReader
from oxillama.server.reading import Reading
from oxillama.server.translate import Offered, of_items

UNREAD = BrokenToolCall("<call>{", "no name", complete=True, id="id0")


def called(index, **more):
    """A chunk with the whole of a call."""
    pieces = [ToolCallDelta(index, f"id{index}", "get"), ToolCallDelta(index, arguments='{"a": 1}')]
    return Chunk("", tool_call_deltas=pieces, tool_calls=[ToolCall("get", {"a": 1}, id=f"id{index}")], **more)


def test_calls_are_counted_without_those_that_can_not_be_read():
    for most in (None, 1):
        choice = Choice(0, DeltaReader(most))
        choice.add(Chunk("", tool_calls=[UNREAD]))
        choice.add(called(1, finish_reason="stop"))
        assert choice.text == "<call>{"
        assert [(call.name, call.arguments) for call in choice.calls] == [("get", '{"a": 1}')]
        assert choice.finish_reason == "tool_calls"


def test_a_call_that_ends_broken_is_no_end_by_calls():
    choice = Choice(0)
    choice.add(Chunk("", tool_call_deltas=[ToolCallDelta(0, "id0", "get"), ToolCallDelta(0, arguments='{"a": ')]))
    cut = BrokenToolCall("<call>...", "cut", complete=False, id="id0", begun=True)
    choice.add(Chunk("", tool_calls=[cut], finish_reason="stop"))
    assert (choice.text, choice.finish_reason) == ("", "stop")


def test_a_call_that_is_left_out_cuts_no_other():
    choice = Choice(0, DeltaReader(1))
    assert not choice.add(called(0)).cut
    pieces = [ToolCallDelta(1, "id1", "get"), ToolCallDelta(1, arguments='{"a": ')]
    cut = BrokenToolCall("<call>...", "cut", complete=False, id="id1", begun=True)
    assert not choice.add(Chunk("", tool_call_deltas=pieces, tool_calls=[cut])).cut
    choice = Choice(0)
    assert choice.add(Chunk("", tool_call_deltas=pieces, tool_calls=[cut])).cut


def test_only_a_request_has_reasons_to_stop():
    for reason, stop_ids, shown in ((7, (), None), (7, (7,), 7), ("end", (), "end")):
        choice = Choice(0, stop_ids=stop_ids)
        choice.add(Chunk("", finish_reason="stop", stop_reason=reason))
        assert choice.stop_reason == shown


def test_reasoning_stays_in_its_turn():
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "R1"}]}
    asked = {"type": "message", "role": "user", "content": "again"}
    answer = {"type": "message", "role": "assistant", "content": "a"}
    assert [
        (m["role"], m.get("reasoning_content"))
        for m in of_items([thought, asked, answer], None, Offered([]), Reading()).whole()
    ] == [
        ("assistant", "R1"),
        ("user", None),
        ("assistant", None),
    ]
    assert of_items([asked, thought], None, Offered([]), Reading()).whole()[-1] == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "R1",
    }


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_a_call_that_is_cut_before_its_name_is_no_content(reason):
    call = BrokenToolCall("<tool_call>\n{", "the text ends inside of it", False, "call00000")
    delta = DeltaReader().read(Chunk("Well. ", [1], reason, tool_calls=[call]))
    assert delta.text == ("Well. " if reason == "length" else "Well. <tool_call>\n{")
    whole = BrokenToolCall("<tool_call>\n{}</tool_call>", "it has no name", True, "call00000")
    assert DeltaReader().read(Chunk("", [1], reason, tool_calls=[whole])).text == whole.raw
