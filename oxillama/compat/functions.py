"""Handlers of chat formats that choose functions by turns: Functionary's, and chatml-function-calling."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from oxillama.chat.messages import checked_messages, joined
from oxillama.compat.chat import Answer, answered, functions_of, held_to, named_tool, with_tools
from oxillama.compat.declarations import declared
from oxillama.compat.llama_grammar import LlamaGrammar
from oxillama.compat.turns import Part, Turns, random_id, written
from oxillama.errors import ConfigError, GrammarError

__all__ = ["chatml_function_calling", "functionary", "functionary_v1_v2"]

Message = Mapping[str, Any]
BOTH = ("function_call", "tool_calls")
SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and polite answers to the user's questions. The assistant calls functions with appropriate input when necessary"
)


def _read(messages: Any) -> list[dict[str, Any]]:
    """Messages with contents that are texts. Raises MessageError."""
    if isinstance(messages, Sequence) and not isinstance(messages, str):
        messages = [
            {**m, "content": ""}
            if isinstance(m, Mapping) and m.get("function_call") and m.get("content") is None
            else m
            for m in messages
        ]
    checked = checked_messages(messages)
    return [m | {"content": m["content"] if isinstance(m["content"], str) else joined(m["content"])} for m in checked]


def _asked(options: dict[str, Any]) -> tuple[list[Mapping[str, Any]], Mapping[str, Any] | None]:
    """(functions to choose from, the one that was chosen).

    Raises ConfigError for a choice that the format lacks, and for tools that aren't functions with names.
    """
    functions, named = functions_of(options["tools"]), named_tool(options)
    choice = options["tool_choice"]
    if choice not in (None, "auto", "none") and named is None:
        raise ConfigError(f"tool_choice must be a tool, auto or none with this chat format, not {choice!r}")
    return [] if choice == "none" else functions, named


def _arguments(function: Mapping[str, Any] | None, *, asked: bool) -> LlamaGrammar:
    """Grammar of a call's arguments: any object of a function that isn't known, or that no grammar can hold.

    Raises GrammarError for one that can't be held and is asked for by its name.
    """
    parameters = {"type": "object"} if function is None else function.get("parameters", {"type": "object"})
    try:
        return LlamaGrammar.from_json_schema(json.dumps(parameters))
    except GrammarError:
        if asked:
            raise
        return LlamaGrammar.from_json_schema('{"type": "object"}')


def _named(functions: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    return next((function for function in functions if function["name"] == name), None)


# ---- chatml-function-calling

_END = "<|im_end|>"
_TOLD = (
    "\n\nYou can respond to users messages with either a single message or one or more function calls."
    "\n\nTo respond with a message begin the message with 'message:', use the following format:"
    "\n\nmessage:\n<message>"
    "\n\nTo respond with one or more function calls begin the message with 'functions.<function_name>:', use the "
    'following format:\n\nfunctions.<function_name>:\n{ "arg1": "value1", "arg2": "value2" }\n'
    'functions.<function_name>:\n{ "arg1": "value1", "arg2": "value2" }'
)


def chatml_function_calling(*, llama: Any, messages: Any, **options: Any) -> Answer:
    """The handler of "chatml-function-calling": a model of ChatML is told of functions, and chooses with a grammar."""
    found = with_tools(options)
    functions, named = _asked(found)
    if found["tool_choice"] is None:
        functions = []  # there, too, nothing is called unless it is asked for
    prompt = _chatml(_read(messages), functions)

    def answer(text: str, named: Mapping[str, Any] | None = None) -> Answer:
        return answered(llama, llama.prompt_ids(text), found, named=named, stop=[_END])

    if named is not None:
        return answer(f"{prompt}functions.{named['name']}:\n", named)
    if not functions:
        return answer(prompt)
    turns = Turns(llama, found)
    texts = ["message:", *(f"functions.{function['name']}:" for function in functions)]
    chosen = turns.text(prompt, [":"], temperature=0, max_tokens=None, grammar=_one_of(texts))
    if chosen == "message":
        return answer(f"{prompt}message:\n")
    parts = _chatml_calls(turns, prompt, chosen, functions)
    return written(turns, parts, stream=found["stream"], fields=BOTH, ids=_numbered)


def _numbered(number: int, name: str, answer: str) -> str:
    return f"call__{number}_{name}_{answer}"


def _one_of(texts: Sequence[str]) -> LlamaGrammar:
    return LlamaGrammar.from_string("root ::= " + " | ".join(json.dumps(text) for text in texts))


def _chatml_calls(turns: Turns, prompt: str, chosen: str, functions: Sequence[Mapping[str, Any]]) -> Iterator[Part]:
    """Calls until the model chooses to end, max_tokens ends one, or the context has no room for another."""
    names = [f"functions.{function['name']}" for function in functions]
    while chosen in names:
        name = chosen.removeprefix("functions.")
        yield Part("call", name)
        prompt += f"{chosen}:\n"
        for text in turns.pieces(prompt, [_END], grammar=_arguments(_named(functions, name), asked=False)):
            prompt += text
            yield Part("arguments", text)
        prompt += "\n"
        if turns.finish_reason != "stop" or len(turns.llama.prompt_ids(prompt)) >= turns.llama.n_ctx():
            return
        texts = [*(f"{name}:" for name in names), _END, ""]
        chosen = turns.text(prompt, [":", _END], max_tokens=None, grammar=_one_of(texts))


def _chatml(messages: Sequence[Message], functions: Sequence[Mapping[str, Any]]) -> str:
    shown = [f"\nfunctions.{f['name']}:\n{json.dumps(f.get('parameters', {}), sort_keys=True)}\n" for f in functions]
    told = f"\n\nYou have access to the following functions:\n{''.join(shown)}{_TOLD}" if functions else ""
    if told and not any(message["role"] == "system" for message in messages):
        messages = [{"role": "system", "content": ""}, *messages]
    text = ""
    for message in messages:
        content, calls = message["content"], message.get("tool_calls", ())
        text += f"<|im_start|>{message['role']}\n"
        if message["role"] == "system":
            content += told
        elif message["role"] == "assistant" and told and content:
            content = f"message:\n{content}"
        text += f"{content}{_END}\n" if content or not calls else ""
        if calls:
            written_calls = [f"functions.{c['function']['name']}:\n{_as_text(c['function'])}" for c in calls]
            text += f"{''.join(written_calls)}{_END}\n"
    return f"{text}<|im_start|>assistant\n"


def _as_text(function: Mapping[str, Any]) -> str:
    arguments = function.get("arguments", {})
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


# ---- Functionary


def functionary(*, llama: Any, messages: Any, **options: Any) -> Answer:
    """The handler of "functionary", of the first models of that name."""
    found = with_tools(options)
    functions, named = _asked(found)
    declarations = [{"role": "system", "content": declared(functions, indent="  ", end="\n")}] if functions else []
    system = {"role": "system", "content": SYSTEM}
    prompt = "".join(_functionary_line(m) for m in [*declarations, system, *_read(messages)]) + "assistant"
    ends = ["user:", "</s>"]
    turns = Turns(llama, found)
    name = "" if named is None else named["name"]
    if functions and named is None:
        # " to=functions.NAME:", or ":" before a message
        opening = turns.text(prompt, ["\n"], max_tokens=None)
        chosen = re.search(r"to=(?:functions\.)?([^:\s]+)", opening)
        name = chosen.group(1) if chosen else ""
    if not name:
        return answered(llama, llama.prompt_ids(f"{prompt}:\n"), found, stop=ends)

    def call() -> Iterator[Part]:
        yield Part("call", name)
        grammar = _arguments(named or _named(functions, name), asked=named is not None)
        pieces = turns.pieces(f"{prompt} to=functions.{name}:\n", ends, grammar=grammar)
        yield from (Part("arguments", text) for text in pieces)

    return written(turns, call(), stream=found["stream"], fields=BOTH, ids=lambda number, name, answer: name)


def _functionary_line(message: Message) -> str:
    """A message as the model knows it. Raises ConfigError for another role."""
    role, content = message["role"], message["content"]
    call, calls = message.get("function_call"), message.get("tool_calls")
    if role == "system":
        return f"system:\n{content}\n"
    if role == "user":
        return f"user:\n</s>{content}</s>\n"
    if role == "function":
        return f"function name=functions.{message.get('name', '')}:\n{content}\n"
    if role == "tool":
        return f"function name={message.get('tool_call_id', '')}:\n{content}\n"
    if role != "assistant":
        raise ConfigError(f"messages must have the roles system, user, assistant, function and tool, not {role!r}")
    said = f"assistant:\n{content}\n" if content or not (call or calls) else ""
    if call:
        return f"{said}assistant to=functions.{call['name']}:\n{_as_text(call)}</s>\n"
    return said + "".join(f"assistant to={c.get('id', '')}:\n{_as_text(c['function'])}</s>\n" for c in calls or ())


def functionary_v1_v2(*, llama: Any, messages: Any, **options: Any) -> Answer:
    """The handler of "functionary-v1" and "functionary-v2". Raises ConfigError without their tokenizer."""
    found = with_tools(options)
    functions, named = _asked(found)
    grammar = held_to(found, None)
    if found["logprobs"] or (functions and grammar is not None):
        name = "logprobs" if found["logprobs"] else "grammar or response_format"
        raise ConfigError(f"{name} must be None with this chat_format, beside tools")
    tokenizer = getattr(llama.tokenizer_, "hf_tokenizer", None)
    if tokenizer is None:
        raise ConfigError("tokenizer must be the model's LlamaHFTokenizer with this chat_format: it writes the prompts")
    told = [{"role": "system", "content": text} for text in (declared(functions), SYSTEM)]
    told = told if functions or found["tool_choice"] == "none" else told[1:]
    said = [_with_prefix(message) for message in _read(messages)]
    prompt: str = tokenizer.apply_chat_template([*told, *said], tokenize=False)
    turns = Turns(llama, found, grammar)
    first = "<|START_OF_FUNCTION_CALL|>" in tokenizer.additional_special_tokens
    parts = (_version_1 if first else _version_2)(turns, prompt, functions, named)
    fields = ("tool_calls",) if options.get("functions") is None else ("function_call",)
    return written(turns, parts, stream=found["stream"], fields=fields, ids=random_id)


def _with_prefix(message: dict[str, Any]) -> dict[str, Any]:
    """A message with names of functions in their namespace."""
    if message["role"] == "function" and "name" in message:
        message["name"] = f"functions.{message['name']}"
    if message.get("function_call"):
        call = message["function_call"]
        message["function_call"] = {**call, "name": f"functions.{call['name']}"}
    return message


def _version_1(
    turns: Turns, prompt: str, functions: Sequence[Mapping[str, Any]], named: Mapping[str, Any] | None
) -> Iterator[Part]:
    """A message, or "<|START_OF_FUNCTION_CALL|>NAME:" on its last line, and then the arguments."""
    begin, end = "<|START_OF_FUNCTION_CALL|>", "<|END_OF_FUNCTION_CALL|>"
    prompt += "assistant:\n"
    asked = named is not None
    if named is None:
        for text in turns.pieces(prompt, [*([begin] if functions else []), "<|END_OF_ASSISTANT|>"]):
            prompt += text
            yield Part("content", text)
        if not functions or turns.ended_by != begin:
            return
        named = yield from _begun(turns, prompt + begin, [":\n", ":"], functions)
    else:
        yield Part("call", named["name"])
    prompt += f"{begin}{named['name']}:\n"
    for text in turns.pieces(prompt, [end], grammar=_arguments(named, asked=asked)):
        yield Part("arguments", text)


def _begun(
    turns: Turns, prompt: str, stop: Sequence[str], functions: Sequence[Mapping[str, Any]]
) -> Generator[Part, None, Mapping[str, Any]]:
    """The call whose name the model writes next; returns its function."""
    name = turns.text(prompt, stop).strip()
    yield Part("call", name)
    return _named(functions, name) or {"name": name}


_NEXT = re.compile(r"\n?(?:<\|from\|>)? ?assistant\n?$")
_NEXT_BEGINS = re.compile(r"(?:\n|<)[^\n]*\n?$")


def _version_2(
    turns: Turns, prompt: str, functions: Sequence[Mapping[str, Any]], named: Mapping[str, Any] | None
) -> Iterator[Part]:
    """Turns "<|from|>assistant\\n<|recipient|>NAME\\n<|content|>...", where the name "all" is a message."""
    turn, recipient, content, ends = "<|from|>assistant\n<|recipient|>", "<|recipient|>", "<|content|>", "<|stop|>"
    prompt += turn
    while True:
        name = "all" if not functions else named["name"] if named else turns.text(prompt, [content]).strip()
        prompt += f"{name}\n{content}"
        if name == "all":
            text = ""
            for piece in _before_next(turns.pieces(prompt, [recipient, ends] if functions else [ends])):
                text += piece
                yield Part("content", piece)
        else:
            yield Part("call", name)
            known = _named(functions, name)
            text = ""
            stop = [recipient, ends] if named is None else [ends, "<|from|>"]
            for piece in turns.pieces(prompt, stop, grammar=_arguments(known, asked=named is not None)):
                text += piece
                yield Part("arguments", piece)
            if named is not None or turns.finish_reason != "stop":
                return
            turns.text(prompt + text, [recipient, ends], max_tokens=16)
        if not functions or turns.ended_by != recipient:
            return
        prompt += f"{text.rstrip()}\n{turn}"


def _before_next(pieces: Iterator[str]) -> Iterator[str]:
    """Pieces without what opens another turn at their end, and without spaces at their beginning."""
    held, begun = "", False
    for piece in pieces:
        held += piece
        if not begun:
            held = held.lstrip()
        kept = _NEXT_BEGINS.search(held)
        text, held = (held[: kept.start()], held[kept.start() :]) if kept else (held, "")
        begun = begun or bool(text)
        if text:
            yield text
    if rest := _NEXT.sub("", held):
        yield rest
