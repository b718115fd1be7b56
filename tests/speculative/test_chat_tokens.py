"""Prompts of a speculative engine are those of its engine, whatever options they are made with."""

import oxillama as ox

HI = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


def test_chat_tokens_takes_the_options_of_a_prompt():
    with ox.load(num_threads=1) as engine:
        speculative = ox.SpeculativeEngine(engine, "lookup")
        for options in ({}, {"tools": TOOLS, "tool_format": "generic"}, {"tools": TOOLS, "tool_format": "hermes"},
                        {"add_generation_prompt": False}):  # fmt: skip
            assert speculative.chat_tokens(HI, **options) == engine.chat_tokens(HI, **options)
