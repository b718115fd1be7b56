"""Chat and infill prompts: the token ids of what `Engine.chat` and `Engine.infill` are given."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import fields
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

from oxillama.chat import ChatTemplate
from oxillama.chat.continuation import check_continuation
from oxillama.chat.functions import described_tools
from oxillama.chat.literals import Marking, marking_of
from oxillama.chat.messages import checked_messages
from oxillama.chat.tool_display import answer_format, note_of, shown_by
from oxillama.core.answer_options import AnswerOptions, ToolUse, tool_use_of
from oxillama.core.context import EngineContext
from oxillama.core.options import PromptOptions, check_options
from oxillama.core.prompts import Messages, Tools, check_length, infill_ids
from oxillama.errors import ChatTemplateError, ConfigError
from oxillama.tokenizer import Tokenizer

__all__ = [
    "ChatCall",
    "chat_call",
    "chat_ids",
    "chat_prompt",
    "chat_request",
    "chat_text",
    "infill_request",
    "owner_of",
    "reading_of",
    "template_for",
]

_CONTROL_TEXTS: WeakKeyDictionary[Tokenizer, tuple[str, ...]] = WeakKeyDictionary()
_ANSWER_OPTIONS = tuple(
    field.name for field in fields(AnswerOptions) if field.name not in PromptOptions.__annotations__
)
# Arguments of `ChatTemplate.render` that are no variables.
_ARGUMENTS = ("messages", "tools", "add_generation_prompt", "continue_final_message", "now", "self")


class ChatCall(NamedTuple):
    """The keywords of `Engine.chat`, divided: of the prompt, of how its answer is read, and of the text after it."""

    prompt: PromptOptions
    answer: AnswerOptions
    text: dict[str, Any]


def chat_call(options: Mapping[str, Any]) -> ChatCall:
    """Divides the keywords of `Engine.chat` by what they are for; `options` stay as they are.

    messages: as OpenAI's clients send them; content is text, or a list of text parts, {"type": "text", "text": …},
        which are joined with newlines unless the template prints parts (see `ChatTemplate.render`).
    stream: give chunks as they come.
    tools: functions that the model may call: typed Python functions, described by their name, docstring and
        annotations, or {"type": "function", "function": {"name": …, "parameters": schema}} each; its calls are in
        `tool_calls` of the result. A file with a template named "tool_use" has it used for them.
    chat_template: a Jinja template to use instead of the model's.
    template_kwargs: variables of the template, such as {"enable_thinking": False}.
    reasoning_effort: how much the model is to think, such as "low" or "high", if the template has a variable for it.
    add_generation_prompt: False for a prompt that doesn't open the assistant's turn.
    continue_final_message: True for an answer that goes on from the last message, which the assistant began; or the
        field that it goes on from, "content" or "reasoning_content".
    tool_choice: "auto"; "required": it calls, and says nothing else; a tool's name: it calls that one, once; or "none":
        it doesn't see the tools, and all of its answer is text. Of the objects of OpenAI's clients, `function` names
        one tool, and `allowed_tools` lists those that it may call.
    tool_format: how it writes calls, if its template doesn't tell: "hermes", "qwen", "mistral", "mistral-args",
        "llama3", a `ToolFormat` or `ChatFormat`, or "text": calls stay text. A template that shows no tools has them
        described in a system message, with calls in JSON unless a format is named; "generic" does so with any template,
        and "none" refuses tools instead.
    constrain_tools: False for calls that aren't held to the names and schemas of tools. With "auto" they aren't either
        where a grammar, schema, pattern or choices say what the whole text is.
    parallel_tool_calls: False for one call at most where calls are held to the tools.
    reasoning: "auto": what the model thinks before its answer is in `reasoning` of the result, and not in its text;
        "none": it stays in the text; a `ReasoningFormat`: the marks around it, if the template doesn't tell. Grammars,
        schemas and required calls hold for what follows it.
    reasoning_budget: so many tokens of reasoning at most; then its end is written in the model's place.

    Other options are those of `generate` but `echo`.
    """
    if options.get("echo"):
        raise ConfigError("echo is not for chat(), whose prompt a template makes: chat_tokens() gives its tokens")
    prompt = {name: value for name, value in options.items() if name in PromptOptions.__annotations__}
    tools = described_tools(prompt.get("tools"))
    given = {name: value for name, value in options.items() if name in _ANSWER_OPTIONS}
    answer = AnswerOptions(tools=tools, tool_format=prompt.get("tool_format"), **given)
    prompt["tools"] = None if answer.tool_choice == "none" else tools
    text = {name: value for name, value in options.items() if name not in prompt and name not in given}
    return ChatCall(cast("PromptOptions", prompt), answer, text)


def chat_request(
    context: EngineContext, messages: Messages, options: Mapping[str, Any]
) -> tuple[list[int], dict[str, Any]]:
    """Makes the prompt of messages, and the keywords of `generate` for its answer, of those of `Engine.chat`."""
    check_options("chat", options)
    context.core.check_generates()
    call = chat_call(options)
    owner = owner_of(options.get("cache_salt")) if options.get("cache_prompt") is not False else None
    ids, use = chat_prompt(context, messages, call.prompt, call.answer, owner)
    if use is None:
        return ids, call.text
    if options.get("tool_use") is not None:
        raise ConfigError("tool_use and tools are both given: chat() makes the one of the other")
    return ids, {**call.text, "tool_use": use}


def chat_prompt(
    context: EngineContext,
    messages: Messages,
    prompt: PromptOptions,
    answer: AnswerOptions,
    owner: Hashable = None,
) -> tuple[list[int], ToolUse | None]:
    """Renders messages to token ids, and finds how the answer is divided: None for text alone.

    owner: of the ids that the tokenizer keeps; see `owner_of`. Raises what `chat_ids` and `tool_use_of` raise.
    """
    ids, text = _ids_and_text(context.tokenizer, messages, prompt, context.context_size, owner)
    return ids, reading_of(context.tokenizer, messages, prompt, answer, text)


def owner_of(cache_salt: object) -> Hashable:
    """Owner of the ids that a tokenizer keeps for requests with this salt."""
    return "engine", cache_salt if isinstance(cache_salt, str) else None


def reading_of(
    tokenizer: Tokenizer,
    messages: Messages,
    options: Mapping[str, Any],
    answer: AnswerOptions,
    prompt: str | None = None,
) -> ToolUse | None:
    """Division of the answer to messages into reasoning, text and calls; None for text alone.

    options: those of `PromptOptions`. prompt: the text that they make, if it is there already.
    Raises what `tool_use_of` raises.
    """
    template = template_for(tokenizer, options.get("tools"), options.get("chat_template"))
    checked = checked_messages(messages)

    def end_of_prompt(said: Messages, tools: Tools) -> str:
        return template.generation_prompt(said, prompt=prompt, tools=tools, **_rendering(options))

    def begun() -> str:
        try:
            return shown_by(template, checked, options, end_of_prompt)
        except ChatTemplateError:  # it refuses messages that no turn follows
            return ""

    field = check_continuation(options.get("continue_final_message") or False, checked)
    return tool_use_of(
        lambda: answer_format(template, options),
        begun,
        messages,
        answer,
        thinks=field in (None, "reasoning_content"),
        note=note_of(template, options),
    )


def chat_ids(
    tokenizer: Tokenizer, messages: Messages, options: Mapping[str, Any], context_size: int | None = None
) -> list[int]:
    """Token ids of the prompt that a chat template makes of messages. options: those of `PromptOptions`.

    Raises MessageError for messages of another form, TemplateVariableError for a variable that the template doesn't
    read, ChatTemplateError if there is no template or it fails, TypeError for another option, and with a context_size
    ContextOverflowError for far more tokens than that.
    """
    return _ids_and_text(tokenizer, messages, options, context_size)[0]


def chat_text(tokenizer: Tokenizer, messages: Messages, options: Mapping[str, Any]) -> str:
    """The prompt as text, from which `Tokenizer.encode` with control tokens makes its ids.

    The token that begins a text is left out where the tokenizer adds it by itself. Raises what `chat_ids` raises.
    """
    text, mark = _prompt_text(tokenizer, messages, options)
    text = text.replace(mark, "")
    if tokenizer.add_bos and tokenizer.bos_id is not None:
        text = text.removeprefix(tokenizer.id_to_token(tokenizer.bos_id))
    return text


def _ids_and_text(
    tokenizer: Tokenizer,
    messages: Messages,
    options: Mapping[str, Any],
    context_size: int | None,
    owner: Hashable = None,
) -> tuple[list[int], str]:
    """The prompt as `chat_ids` gives it, and as text. owner: of the pieces that the tokenizer keeps."""
    text, mark = _prompt_text(tokenizer, messages, options)
    plain = text.replace(mark, "")
    if context_size is not None:
        check_length(tokenizer, "the prompt of messages", plain, context_size, parse_special=True)
    ids = tokenizer.encode_marked(text, mark, owner) if mark else tokenizer.encode(text, False, True, owner=owner)
    if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
        ids.insert(0, tokenizer.bos_id)  # templates differ in whether they write it themselves
    return ids, plain


def _prompt_text(tokenizer: Tokenizer, messages: Messages, options: Mapping[str, Any]) -> tuple[str, str]:
    """The prompt of messages, and the mark within it; "" if there is none. Raises what `chat_ids` raises."""
    check_options("chat_tokens", options)
    given = checked_messages(messages)  # before it is known whether there is a template
    options = {**options, "tools": described_tools(options.get("tools"))}
    template = template_for(tokenizer, options["tools"], options.get("chat_template"))
    return _marked_prompt(tokenizer, template, given, options)


def _marked_prompt(
    tokenizer: Tokenizer, template: ChatTemplate, messages: list[dict[str, Any]], options: Mapping[str, Any]
) -> tuple[str, str]:
    """The prompt, and the mark within texts of control tokens that messages, tools and variables hold; "" if none do.

    Raises what `ChatTemplate.render` raises.
    """
    tools, variables = options.get("tools"), _rendering(options)

    def rendered(messages: list[dict[str, Any]], tools: Any, variables: dict[str, Any]) -> str:
        given = {**options, "tools": tools}
        return shown_by(template, messages, given, lambda said, shown: template.render(said, tools=shown, **variables))

    plain = rendered(messages, tools, variables)
    marking = marking_of([messages, tools, variables], _control_texts(tokenizer), plain)
    if marking is None:
        return plain, ""

    def marked(by: Marking) -> str:
        said = [by.message(message) for message in messages]
        given = {name: by.value(value) for name, value in variables.items()}
        return by.prompt(rendered(said, None if tools is None else by.value(tools), given))

    text = marked(marking)
    if text.replace(marking.mark, "") != plain:
        cut = marking.around_cuts(messages, lambda by: marked(by).replace(by.mark, "") != plain)
        text = marked(cut)
    return text, marking.mark


def _control_texts(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Texts of the tokens that are no text: control tokens, and the unknown one."""
    found = _CONTROL_TEXTS.get(tokenizer)
    if found is None:
        ids = filter(tokenizer.is_special, range(tokenizer.n_vocab))
        found = _CONTROL_TEXTS[tokenizer] = tuple(filter(None, map(tokenizer.id_to_token, ids)))
    return found


def template_for(tokenizer: Tokenizer, tools: Tools, source: str | None) -> ChatTemplate:
    """The template of this source, or else the file's: that for tools, if there are some and it has one.

    Raises ChatTemplateError if there is none, or it doesn't compile.
    """
    if source is None:
        named = "tool_use" if tools and "tool_use" in tokenizer.chat_templates else "default"
        return tokenizer.template(named)
    bos, eos = (tokenizer.id_to_token(i) if i is not None else "" for i in (tokenizer.bos_id, tokenizer.eos_id))
    return ChatTemplate(source, bos_token=bos, eos_token=eos)


def _rendering(options: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of `ChatTemplate.render`. Raises ConfigError for `template_kwargs` of another form."""
    variables = options.get("template_kwargs")
    if variables is None:
        variables = {}
    elif not isinstance(variables, Mapping) or not all(isinstance(name, str) for name in variables):
        raise ConfigError(f"template_kwargs must be a dict of variables by name, not {variables!r:.60}")
    for name in variables:
        if name in _ARGUMENTS:
            raise ConfigError(f"template_kwargs has {name!r}, which is no variable but an argument of its own")
    names = ("add_generation_prompt", "continue_final_message", "reasoning_effort")
    given = {name: options[name] for name in names if options.get(name) is not None}
    if both := given.keys() & variables.keys():
        raise ConfigError(f"{both.pop()} is given, and in template_kwargs too: give it once")
    return {**given, **variables}


def infill_request(
    context: EngineContext, prefix: str, suffix: str, options: Mapping[str, Any]
) -> tuple[list[int], dict[str, Any]]:
    """Makes the prompt for the text between two others, and the keywords of `generate`, of those of `Engine.infill`."""
    check_options("infill", options)
    if options.get("echo"):
        raise ConfigError("echo is not for infill(), whose text stands between two others")
    context.core.check_generates()
    ids = infill_ids(context.tokenizer, prefix, suffix, options.get("suffix_first", False), context.context_size)
    return ids, {name: value for name, value in options.items() if name != "suffix_first"}
