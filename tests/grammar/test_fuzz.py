"""Any text as a grammar: it is refused with a GrammarError, or followed with masks that tell the truth.

Texts begin as recorded and as hostile grammars, and are cut, doubled and spliced. OXILLAMA_FUZZ_EXAMPLES sets how many
are tried; .ci/run tries as many as take about a minute.
"""

import os
import random

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from oxillama.errors import GrammarError
from oxillama.grammar import Grammar, GrammarState
from tests.grammar.cases import CORPUS, FRAGMENTS, TEXTS, VOCABULARY
from tests.grammar.naive import allowed

EXAMPLES = int(os.environ.get("OXILLAMA_FUZZ_EXAMPLES", "150"))


@st.composite
def damaged(draw):
    """A text of the corpus after some edits, perhaps with another one behind it."""
    text = draw(st.sampled_from(CORPUS))
    for _ in range(draw(st.integers(0, 4))):
        at, end = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        piece = draw(
            st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=3), st.just(text[at : min(end, at + 40)] * 2))
        )
        text = text[:at] + piece + text[draw(st.sampled_from([at, at + 1, end])) :]
    return text + draw(st.sampled_from(["", "", "\n" + draw(st.sampled_from(CORPUS))]))


def follow(text, seed):
    """Takes random steps; every token that the mask names can be taken, and no other. Saved states are the same."""
    try:
        grammar = Grammar.parse(text, token_id={"<think>": 4}.get)
        state = grammar.state(VOCABULARY)
    except GrammarError:
        return
    draw = random.Random(seed)
    for _ in range(4):
        possible = allowed(state)
        assert (len(TEXTS) in possible) == state.is_complete
        for token in draw.sample(range(len(TEXTS) + 2), 6):
            try:
                state.advance(token)
            except GrammarError:
                assert token not in possible
            else:
                assert token in possible
                state.rollback(1)
        forced = state.forced_bytes(8)
        if forced and draw.random() < 0.5:
            state.advance(forced)
        elif possible:
            state.advance(draw.choice(possible))
        twin = GrammarState.from_state(state.state(), grammar, VOCABULARY)
        assert allowed(twin) == allowed(state)


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(damaged(), st.integers(0, 1000))
@example('root ::= "a" <think>', 0)
@example("root ::= .{3}", 1)
def test_damaged_grammars(text, seed):
    try:
        follow(text, seed)
    except GrammarError as error:  # from a step: then the text has too many readings
        if "too ambiguous" not in str(error):
            raise


def test_every_text_of_the_corpus():
    for text in CORPUS:
        follow(text, 1)
