"""Chat formats and handlers by name, and functions of the caller's in their place."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

from oxillama.chat import ChatTemplate
from oxillama.compat.chat import Answer, Handler, answered, named_tool, with_tools
from oxillama.compat.chat_styles import STYLES, llama_2, mistral_instruct, saiga, written
from oxillama.compat.functions import chatml_function_calling, functionary, functionary_v1_v2
from oxillama.compat.picture_handlers import (
    Gemma4ChatHandler,
    Llama3VisionAlpha,
    Llama3VisionAlphaChatHandler,
    Llava15ChatHandler,
    Llava16ChatHandler,
    MiniCPMv26ChatHandler,
    MoondreamChatHandler,
    MTMDChatHandler,
    NanoLlavaChatHandler,
    ObsidianChatHandler,
    Qwen25VLChatHandler,
)
from oxillama.errors import ConfigError

__all__ = [
    "ChatFormatter",
    "ChatFormatterResponse",
    "Gemma4ChatHandler",
    "Jinja2ChatFormatter",
    "Llama3VisionAlpha",
    "Llama3VisionAlphaChatHandler",
    "LlamaChatCompletionHandler",
    "LlamaChatCompletionHandlerNotFoundException",
    "LlamaChatCompletionHandlerRegistry",
    "Llava15ChatHandler",
    "Llava16ChatHandler",
    "MTMDChatHandler",
    "MiniCPMv26ChatHandler",
    "MoondreamChatHandler",
    "NanoLlavaChatHandler",
    "ObsidianChatHandler",
    "Qwen25VLChatHandler",
    "chat_formatter_to_chat_completion_handler",
    "get_chat_completion_handler",
    "hf_autotokenizer_to_chat_completion_handler",
    "hf_autotokenizer_to_chat_formatter",
    "hf_tokenizer_config_to_chat_completion_handler",
    "hf_tokenizer_config_to_chat_formatter",
    "register_chat_completion_handler",
    "register_chat_format",
]

LlamaChatCompletionHandler = Handler


class LlamaChatCompletionHandlerNotFoundException(ConfigError):  # the replaced package's name
    """No chat format or handler of this name."""


@dataclass
class ChatFormatterResponse:
    """A prompt. stop: texts that end the answer. added_special: the prompt has what begins a text already."""

    prompt: str
    stop: str | list[str] | None = None
    stopping_criteria: Any = None
    added_special: bool = False


class ChatFormatter(Protocol):
    """A function of messages that gives a prompt."""

    def __call__(self, *, messages: Any, **kwargs: Any) -> ChatFormatterResponse: ...


class Jinja2ChatFormatter:
    """A formatter by a chat template, which runs in a sandbox with limits on time and output."""

    def __init__(
        self, template: str, eos_token: str, bos_token: str, add_generation_prompt: bool = True,
        stop_token_ids: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        self.template, self.eos_token, self.bos_token = template, eos_token, bos_token
        self.add_generation_prompt = add_generation_prompt
        self.stop_token_ids = None if stop_token_ids is None else set(stop_token_ids)
        self._compiled = ChatTemplate(template, bos_token=bos_token, eos_token=eos_token)

    def __call__(self, *, messages: Any, **kwargs: Any) -> ChatFormatterResponse:
        tools = kwargs.pop("tools", None)
        known = {name: value for name, value in kwargs.items() if name in self._compiled.variables}
        prompt = self._compiled.render(messages, add_generation_prompt=self.add_generation_prompt, tools=tools, **known)
        ends = self.stop_token_ids
        criteria = None if ends is None else lambda tokens, logits: len(tokens) > 0 and int(tokens[-1]) in ends
        return ChatFormatterResponse(prompt, [self.eos_token] if self.eos_token else None, criteria, added_special=True)

    def to_chat_handler(self) -> Handler:
        """The handler of this formatter."""
        return chat_formatter_to_chat_completion_handler(self)


def chat_formatter_to_chat_completion_handler(chat_formatter: ChatFormatter) -> Handler:
    """A handler that answers the prompts of a formatter."""

    def handle(*, llama: Any, messages: Any, **options: Any) -> Answer:
        found = with_tools(options)
        shown = None if found["tool_choice"] == "none" else found["tools"]
        named = named_tool(found)
        if named is None and shown:
            _check_shows(chat_formatter, found["tool_choice"])
        made = chat_formatter(messages=messages, tools=shown, tool_choice=found["tool_choice"])
        ids = llama.tokenize(made.prompt.encode(), add_bos=not made.added_special, special=True)
        stop = [made.stop] if isinstance(made.stop, str) else made.stop or []
        return answered(llama, ids, found, named=named, stop=stop, criteria=made.stopping_criteria)

    return handle


def hf_tokenizer_config_to_chat_formatter(
    tokenizer_config: Mapping[str, Any], add_generation_prompt: bool = True
) -> ChatFormatter:
    """A formatter by a tokenizer_config.json: its chat_template, bos_token and eos_token.

    add_generation_prompt: with an empty message of the assistant at the end, as the replaced package has it. Raises
    ConfigError if one of the three is missing.
    """
    for name in ("chat_template", "bos_token", "eos_token"):
        if not isinstance(tokenizer_config.get(name), str):
            raise ConfigError(f"tokenizer_config[{name!r}] must be a str, not {tokenizer_config.get(name)!r:.60}")
    bos, eos = tokenizer_config["bos_token"], tokenizer_config["eos_token"]
    template = ChatTemplate(tokenizer_config["chat_template"], bos_token=bos, eos_token=eos)

    def format(*, messages: Any, tools: Any = None, **kwargs: Any) -> ChatFormatterResponse:
        last = [{"role": "assistant", "content": ""}] if add_generation_prompt else []
        prompt = template.render([*messages, *last], add_generation_prompt=False, tools=tools, **kwargs)
        return ChatFormatterResponse(prompt, [eos, bos], added_special=True)

    return format


def hf_tokenizer_config_to_chat_completion_handler(
    tokenizer_config: Mapping[str, Any], add_generation_prompt: bool = True
) -> Handler:
    """The handler of `hf_tokenizer_config_to_chat_formatter`."""
    formatter = hf_tokenizer_config_to_chat_formatter(tokenizer_config, add_generation_prompt)
    return chat_formatter_to_chat_completion_handler(formatter)


def hf_autotokenizer_to_chat_formatter(pretrained_model_name_or_path: str | os.PathLike[str]) -> ChatFormatter:
    """A formatter by a tokenizer of the package `transformers`. Raises ImportError without it."""
    from transformers import AutoTokenizer  # type: ignore[import-not-found, unused-ignore]

    tokenizer = AutoTokenizer.from_pretrained(pretrained_model_name_or_path)

    def format(*, messages: Any, **kwargs: Any) -> ChatFormatterResponse:
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)
        return ChatFormatterResponse(prompt, tokenizer.eos_token, added_special=True)

    return format


def hf_autotokenizer_to_chat_completion_handler(pretrained_model_name_or_path: str | os.PathLike[str]) -> Handler:
    """The handler of `hf_autotokenizer_to_chat_formatter`."""
    return chat_formatter_to_chat_completion_handler(hf_autotokenizer_to_chat_formatter(pretrained_model_name_or_path))


def _check_shows(chat_formatter: ChatFormatter, choice: Any) -> None:
    """Raises ConfigError for tools that a formatter doesn't show, or whose calls must be found."""
    if not getattr(chat_formatter, "shows_tools", True):
        raise ConfigError(
            "tools must be None with this chat_format, which doesn't show them, or tool_choice one of them"
        )
    if choice == "required":
        raise ConfigError("tool_choice must be a tool, auto or none with this chat format, not 'required'")


class LlamaChatCompletionHandlerRegistry:
    """The handlers by name; all objects of this class have the same ones."""

    _chat_handlers: ClassVar[dict[str, Handler]] = {}

    def register_chat_completion_handler(self, name: str, chat_handler: Handler, overwrite: bool = False) -> None:
        """Adds a handler. Raises ConfigError if the name is taken."""
        if name in self._chat_handlers and not overwrite:
            raise ConfigError(f"name must be a new one, not {name!r}: give overwrite=True to replace that handler")
        self._chat_handlers[name] = chat_handler

    def unregister_chat_handler(self, name: str) -> None:
        """Takes a handler away. Raises ConfigError if there is no such."""
        if self._chat_handlers.pop(name, None) is None:
            raise ConfigError(f"name must be one of {', '.join(self._chat_handlers)}, not {name!r}")

    def get_chat_completion_handler_by_name(self, name: str) -> Handler:
        """Raises LlamaChatCompletionHandlerNotFoundException, a ValueError, if there is no such."""
        if name not in self._chat_handlers:
            raise LlamaChatCompletionHandlerNotFoundException(
                f"Invalid chat handler: {name} (valid formats: {sorted(self._chat_handlers)})"
            )
        return self._chat_handlers[name]


def get_chat_completion_handler(name: str) -> Handler:
    """The handler of a name. Raises LlamaChatCompletionHandlerNotFoundException, a ValueError."""
    return LlamaChatCompletionHandlerRegistry().get_chat_completion_handler_by_name(name)


def register_chat_completion_handler(name: str) -> Callable[[Handler], Handler]:
    """A decorator: the function is the handler of this name."""

    def decorate(handler: Handler) -> Handler:
        LlamaChatCompletionHandlerRegistry().register_chat_completion_handler(name, handler)
        return handler

    return decorate


def register_chat_format(name: str) -> Callable[[ChatFormatter], ChatFormatter]:
    """A decorator: the function is the formatter of this name."""

    def decorate(formatter: ChatFormatter) -> ChatFormatter:
        handler = chat_formatter_to_chat_completion_handler(formatter)
        LlamaChatCompletionHandlerRegistry().register_chat_completion_handler(name, handler)
        return formatter

    return decorate


@dataclass(frozen=True)
class _WrittenFormat:
    """A formatter by a function of messages. It doesn't show tools."""

    write: Callable[[Any], str]
    stop: str | None = None
    shows_tools: ClassVar[bool] = False

    def __call__(self, *, messages: Any, **kwargs: Any) -> ChatFormatterResponse:
        return ChatFormatterResponse(self.write(messages), self.stop)


_FORMATTERS: dict[str, ChatFormatter] = {
    **{name: _WrittenFormat(partial(written, style), style.stop) for name, style in STYLES.items()},
    "llama-2": _WrittenFormat(llama_2),
    "mistral-instruct": _WrittenFormat(mistral_instruct, "</s>"),
    "saiga": _WrittenFormat(saiga),
}
for _name, _formatter in _FORMATTERS.items():
    register_chat_format(_name)(_formatter)
_HANDLERS: dict[str, Handler] = {
    "functionary": functionary,
    "functionary-v1": functionary_v1_v2,
    "functionary-v2": functionary_v1_v2,
    "chatml-function-calling": chatml_function_calling,
}
for _name, _handler in _HANDLERS.items():
    register_chat_completion_handler(_name)(_handler)

# Formatters as functions of this module: format_chatml, format_llama2, ...
_FUNCTIONS = {f"format_{name.replace('-', '_')}": formatter for name, formatter in _FORMATTERS.items()}
_FUNCTIONS |= {f"format_{n.replace('-', '')}": _FORMATTERS[n] for n in ("llama-2", "llama-3", "baichuan-2")}


def __getattr__(name: str) -> ChatFormatter:
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
