"""Keywords of chats, gaps, batches and searches are divided, and stay as their caller has them."""

import copy

import pytest

import oxillama as ox
from oxillama.core.answer_options import AnswerOptions
from oxillama.core.batch import BatchSettings, read_settings
from oxillama.core.beam_rounds import start_search
from oxillama.core.chat import chat_call, chat_prompt, chat_request, infill_request, owner_of
from oxillama.core.draft_options import read_drafts
from oxillama.core.options import PromptOptions, read_options
from tests.fakes import assert_idle

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}<|assistant|>"
)
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
MESSAGES = [{"role": "user", "content": "How much is 1 and 2?"}]
CHAT = {
    "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "chat_template": TEMPLATE,
    "reasoning_budget": None, "cache_salt": "ann", "temperature": 0.0, "max_tokens": 5, "stop": ["x"],
}  # fmt: skip


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1) as engine:
        yield engine
        assert_idle(engine)


def unchanged(call, options):
    """The result of a call that leaves these options as they are, as deep as they go."""
    before = copy.deepcopy(options)
    found = call(options)
    assert options == before
    return found


def test_keywords_of_a_chat_are_divided():
    call = unchanged(chat_call, CHAT)
    assert call.prompt == {"tools": TOOLS, "chat_template": TEMPLATE}
    assert call.answer == AnswerOptions(tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    assert call.text == {"cache_salt": "ann", "temperature": 0.0, "max_tokens": 5, "stop": ["x"]}


def test_the_prompt_has_no_tools_where_none_may_be_called():
    call = unchanged(chat_call, {**CHAT, "tool_choice": "none"})
    assert (call.prompt["tools"], call.answer.tools) == (None, TOOLS)


def test_a_chat_leaves_its_options_alone(engine):
    ids, text = unchanged(lambda options: chat_request(engine.context, MESSAGES, options), CHAT)
    use = text.pop("tool_use")
    assert text == {"cache_salt": "ann", "temperature": 0.0, "max_tokens": 5, "stop": ["x"]}
    prompt = PromptOptions(tools=TOOLS, chat_template=TEMPLATE)
    answer = AnswerOptions(tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    for owner in (None, owner_of("ann")):  # which says whose ids are kept, and changes none
        assert chat_prompt(engine.context, MESSAGES, prompt, answer, owner) == (ids, use)
    assert ids == engine.chat_tokens(MESSAGES, tools=TOOLS, chat_template=TEMPLATE)
    assert (use.choice, use.parallel) == ("required", False)


def test_an_answer_without_calls_and_reasoning_is_text(engine):
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    call = {"chat_template": plain, "seed": 3}
    ids, text = unchanged(lambda options: chat_request(engine.context, MESSAGES, options), call)
    assert (ids, text) == (engine.chat_tokens(MESSAGES, chat_template=plain), {"seed": 3})
    assert chat_prompt(engine.context, MESSAGES, {"chat_template": plain}, AnswerOptions())[1] is None


def test_a_use_of_tools_that_is_given_twice_is_refused(engine):
    expected = chat_request(engine.context, MESSAGES, CHAT)
    assert unchanged(lambda o: chat_request(engine.context, MESSAGES, o), {**CHAT, "tool_use": None}) == expected
    with pytest.raises(ox.ConfigError, match="tool_use and tools are both given"):
        chat_request(engine.context, MESSAGES, {**CHAT, "tool_use": expected[1]["tool_use"]})


def test_chats_end_alike_when_their_options_are_used_again(engine):
    first, second = (engine.chat(MESSAGES, **CHAT) for _ in range(2))
    assert first.token_ids == second.token_ids
    with pytest.raises(ox.ConfigError, match="on_token is for stream=False"):
        engine.chat(MESSAGES, stream=True, on_token=print, **CHAT)


def test_a_gap_leaves_its_options_alone(engine):
    with pytest.raises(ox.UnsupportedModelError):  # whose tokens this model lacks
        unchanged(lambda o: infill_request(engine.context, "a", "b", o), {"suffix_first": True, "seed": 1})


def test_a_batch_divides_its_options():
    options = {"ordered": False, "max_in_flight": 3, "temperature": 0.5, "seed": None}
    settings, text = unchanged(lambda given: read_settings(["a", "b"], given), options)
    assert settings == BatchSettings(ordered=False, max_in_flight=3, total=2)
    assert text == {"temperature": 0.5, "seed": None}


def test_options_of_a_text_go_to_their_classes(engine):
    options = {
        "priority": 7, "draft": "lookup", "num_speculative": 3, "temperature": 0.5, "max_tokens": 9, "stop": None,
        "cache_salt": None, "sampler": ox.SamplerConfig(top_k=4),
    }  # fmt: skip
    found = unchanged(lambda given: read_options("stream", given, engine.context.factory.default_chain), options)
    assert (found.serving.priority, found.drafts.num_speculative, found.max_tokens) == (7, 3, 9)
    assert (found.chain.config.top_k, found.chain.config.temperature) == (4, 0.5)
    with pytest.raises(ox.ConfigError, match="num_speculative is 3, but there is no draft"):
        unchanged(read_drafts, {"num_speculative": 3})


def test_a_search_leaves_its_options_alone(engine):
    options = {"beam_width": 2, "max_new_tokens": 3, "banned_tokens": [5], "priority": 1, "ignore_eos": True}
    core, factory = engine.context.core, engine.context.factory
    search = unchanged(lambda given: start_search(core, factory, "a", None, given), options)
    assert len(search.beams) >= 1
