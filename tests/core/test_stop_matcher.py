"""Stop strings cut where a search in the whole text would, whatever the pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxillama.core.generation_request import StopMatcher
from tests.core.stop_strings import STOPS, TEXT, search


def cut(stops, pieces):
    """Text shown, whether it was stopped, and how many pieces were needed."""
    matcher, shown = StopMatcher(stops), ""
    for n, piece in enumerate(pieces, 1):
        text, stopped = matcher.push(piece)
        shown += text
        if stopped:
            return shown, True, n
    text, stopped = matcher.flush()
    return shown + text, stopped, len(pieces)


@given(STOPS, st.lists(TEXT, max_size=8))
def test_equals_a_search_in_the_whole_text(stops, pieces):
    shown, stopped, n = cut(stops, pieces)
    assert (shown, stopped) == search(stops, "".join(pieces))
    # It may look further than the stop string only to see whether an earlier one becomes complete.
    assert n == len(pieces) or stopped


@given(STOPS, st.lists(TEXT, max_size=8))
def test_what_is_shown_is_never_taken_back(stops, pieces):
    matcher, shown = StopMatcher(stops), ""
    expected, _ = search(stops, "".join(pieces))
    for piece in pieces:
        text, stopped = matcher.push(piece)
        shown += text
        assert expected.startswith(shown)
        if stopped:
            return


@given(STOPS, st.lists(TEXT, max_size=8))
def test_nothing_is_held_back_without_need(stops, pieces):
    matcher, shown, seen = StopMatcher(stops), "", ""
    for piece in pieces:
        text, stopped = matcher.push(piece)
        shown, seen = shown + text, seen + piece
        if stopped:
            return
        held = seen[len(shown) :]
        assert not held or any(s.startswith(held) or held.startswith(s) or s in held for s in stops)


@pytest.mark.parametrize(
    ("stops", "pieces", "shown"),
    [
        ([], ["any", "thing"], "anything"),
        (["."], ["One. Two."], "One"),
        (["\n\n"], ["a\n", "\nb"], "a"),
        (["\n\n"], ["a\n", "b"], "a\nb"),
        (["\n\n"], ["a\n"], "a\n"),
        (["STOP"], ["S", "T", "O", "P"], ""),
        (["aab"], ["a", "a", "a", "b"], "a"),
        (["abcd", "bc"], ["abc", "d"], ""),
        (["abcd", "bc"], ["abc", "e"], "a"),
        (["abcd", "bc"], ["abc"], "a"),
        (["é"], ["caf", "é!"], "caf"),
    ],
)
def test_examples(stops, pieces, shown):
    assert cut(stops, pieces)[0] == shown


def test_stops_at_once_when_nothing_earlier_can_match():
    assert cut(["x", "yz"], ["ax", "b", "c"]) == ("a", True, 1)
