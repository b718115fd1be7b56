"""Keys and values that a next turn reuses, with a template that leaves old reasoning out."""

import json
from dataclasses import replace

import pytest

import oxillama as ox
from oxillama.core.options import read_options
from oxillama.core.runner import Runner
from oxillama.scheduling.sequence import n_common
from tests.chat.shapes import REASONS
from tests.models.references import path_of

ASK = [{"role": "user", "content": "How is the weather in Rome this evening, and what should one wear there?"}]
THOUGHT = "The user asks for Rome. " * 5
SAID = f"<think>{THOUGHT}</think>It is sunny, and warm."
NEXT = {"role": "user", "content": "And in Oslo?"}
TEMPLATE = REASONS("reasoning_content")


def turn(*, kept):
    """The messages of the next turn, with the reasoning in the content or as reasoning."""
    if kept:
        return [*ASK, {"role": "assistant", "content": SAID}, NEXT]
    return [*ASK, {"role": "assistant", "content": "It is sunny, and warm.", "reasoning": THOUGHT}, NEXT]


@pytest.fixture
def computed(monkeypatch):
    """Tokens of each span that was computed."""
    found = []
    forward = Runner.forward

    def counting(self, spans, poll=None):
        found.extend(len(span.tokens) for span in spans)
        return forward(self, spans, poll)

    monkeypatch.setattr(Runner, "forward", counting)
    return found


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("path", [None, path_of("mamba2")], ids=["attention", "recurrent"])
def test_a_conversation_computes_what_differs(computed, kept, path):
    """All of an answer that stays as it was; the answer without its reasoning, and nothing before it, if that goes."""
    with ox.load(path, num_threads=1) as engine:
        options = read_options("stream", {"max_tokens": 60, "temperature": 0}, engine.context.factory.default_chain)
        ask = engine.chat_tokens(ASK, chat_template=TEMPLATE)
        asked = engine.chat_tokens(turn(kept=kept), chat_template=TEMPLATE)
        with engine.conversation() as talk:
            list(talk.stream(ask, options))
            before = talk.tokens
            computed.clear()
            list(talk.stream(asked, replace(options, max_tokens=1)))
            common = min(n_common(before, asked), len(before) - 1)
            assert common >= len(ask) - 1
            if path is None:
                assert sum(computed) == len(asked) - common
            else:  # a state is kept where the prompt ended, and at some places since
                assert len(asked) - common <= sum(computed) <= len(asked) - (len(ask) - 1)


@pytest.mark.parametrize("kept", [True, False])
def test_the_prefix_cache_has_what_is_common(kept):
    grammar = "root ::= " + json.dumps(SAID)
    with ox.load(num_threads=1) as engine:
        options = {"chat_template": TEMPLATE, "seed": 1, "reasoning": "none"}  # the grammar says all of the text
        first = engine.chat(ASK, grammar=grammar, **options)
        before = engine.chat_tokens(ASK, chat_template=TEMPLATE) + first.token_ids
        asked = engine.chat_tokens(turn(kept=kept), chat_template=TEMPLATE)
        second = engine.chat(turn(kept=kept), max_tokens=8, **options)
        common = n_common(before, asked)
        assert (common > first.prompt_tokens) == kept
        block = engine.config.kv_block_size
        assert common - block < second.cached_tokens <= common
    with ox.load(num_threads=1) as other:
        assert other.chat(turn(kept=kept), max_tokens=8, **options).token_ids == second.token_ids
