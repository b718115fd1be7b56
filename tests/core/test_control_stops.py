"""Stop strings that hold texts of control tokens, by brute force over whole texts."""

import pickle

from hypothesis import given
from hypothesis import strategies as st

from oxillama.core.generation_request import ControlStopMatcher
from oxillama.tokenizer.control_texts import ControlTexts
from tests.core.stop_strings import TEXT, search

# Control tokens 1 and 2; their texts overlap with one another and with other text.
TEXTS = ControlTexts([(1, "<a>"), (2, "ab")])
STOPS = st.lists(
    st.one_of(
        st.sampled_from(["<a>", "ab", "<a>b", "b<a>", "<a><a>", "<a>ab", "aab", "<", "a>", "ba"]),
        st.text("ab<>", min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=4,
    unique=True,
)
TOKENS = st.lists(st.one_of(st.sampled_from([1, 2]), st.text("ab<>", max_size=3)), max_size=10)


def matcher_of(stops, shown=(), **options):
    return ControlStopMatcher(stops, TEXTS, shown, **options)


def run(matcher, tokens, last=None, shown=()):
    """The text that is shown, whether it was stopped, and how many tokens were needed."""
    text = ""
    for n, token in enumerate(tokens, 1):
        own = TEXTS[token] if token in shown else "" if isinstance(token, int) else token
        piece, stopped = matcher.push(own, token if isinstance(token, int) else 7)
        text += piece
        if stopped:
            return text, True, n
    if last is not None:
        piece, stopped = matcher.end(last)
        text += piece
        if stopped:
            return text, True, len(tokens)
    piece, stopped = matcher.flush()
    return text + piece, stopped, len(tokens)


def expected(stops, tokens, shown=()):
    """By brute force: where the first stop string with control tokens stands in the text as it was written, and then
    where another one stands in what is shown of the text before."""
    written = []
    for token in tokens:
        if not isinstance(token, int):
            written += [(c, True) for c in token]
        elif token in shown:
            written += [(c, True) for c in TEXTS[token]]
        else:
            written += [(c, False) for c in TEXTS[token]]
    control = [stop for stop in stops if any(text in stop for text in TEXTS.values())]
    before, stopped = search(control, "".join(c for c, _ in written))
    visible = "".join(c for c, is_shown in written[: len(before)] if is_shown)
    text, stopped_there = search([stop for stop in stops if stop not in control], visible)
    return text, stopped or stopped_there


@given(STOPS, TOKENS)
def test_equals_a_search_in_the_whole_text(stops, tokens):
    matcher = matcher_of(stops)
    text, stopped, n = run(matcher, tokens)
    assert (text, stopped) == expected(stops, tokens)
    assert stopped == (matcher.found is not None)
    assert n == len(tokens) or stopped


@given(STOPS, TOKENS)
def test_tokens_whose_text_is_shown(stops, tokens):
    matcher = matcher_of(stops, shown=(1,))
    assert run(matcher, tokens, shown=(1,))[:2] == expected(stops, tokens, shown=(1,))


@given(STOPS, TOKENS, st.sampled_from([1, 2, 3]))
def test_the_token_at_the_end(stops, tokens, last):
    matcher = matcher_of(stops)
    more = [last] if last in TEXTS else []
    assert run(matcher, tokens, last)[:2] == expected(stops, [*tokens, *more])


@given(STOPS, TOKENS)
def test_what_was_found_stays_where_it_is_kept(stops, tokens):
    matcher = matcher_of(stops)
    keeping = matcher_of(stops, keeps=True)
    text, stopped, n = run(matcher, tokens)
    assert run(keeping, tokens) == (text + (matcher.found if stopped else ""), stopped, n)
    assert keeping.found == matcher.found


@given(STOPS, TOKENS)
def test_what_is_shown_is_never_taken_back(stops, tokens):
    matcher = matcher_of(stops)
    whole, _ = expected(stops, tokens)
    shown = ""
    for token in tokens:
        text, stopped = matcher.push("" if isinstance(token, int) else token, token if isinstance(token, int) else 7)
        shown += text
        assert whole.startswith(shown)
        if stopped:
            return


@given(st.lists(TEXT, max_size=8))
def test_text_that_spells_a_control_token_is_found_too(pieces):
    matcher = matcher_of(["<a>", "bb"])
    assert run(matcher, [*pieces, "<", "a>", "x"])[:2] == search(["<a>", "bb"], "".join(pieces) + "<a>x")


@given(st.text("ab<>", max_size=8))
def test_texts_within_a_text(text):
    assert TEXTS.are_in(text) == any(one in text for one in TEXTS.values())
    assert not ControlTexts([(1, "")]).are_in(text)


def test_the_texts_are_a_mapping():
    assert dict(TEXTS) == {1: "<a>", 2: "ab"} == dict(pickle.loads(pickle.dumps(TEXTS)))
    assert TEXTS.get(3) is None
