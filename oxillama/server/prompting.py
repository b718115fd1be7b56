"""Conversations of requests: messages, tools and template options as `Engine.chat` takes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from oxillama.core.chat import chat_ids
from oxillama.core.options import PromptOptions
from oxillama.errors import GrammarError
from oxillama.grammar.json_schema import JsonSchemaCompiler
from oxillama.server.errors import bad_value
from oxillama.server.exchange import Exchange
from oxillama.server.models import Chosen

__all__ = ["conversation", "prompt_ids", "use_tools"]

ANY_ARGUMENTS = {"type": "object", "additionalProperties": True}


def conversation(
    values: Mapping[str, Any], options: dict[str, Any], exchange: Exchange, chosen: Chosen
) -> list[dict[str, Any]]:
    """The messages of a request; what is said of tools and templates goes to `options`. Raises ApiError."""
    engine = chosen.model.ready.engine
    if engine.context.core.encoder or (engine.tokenizer.chat_template is None and not exchange.service.chat_template):
        text = f"the model {chosen.name} has no chat template: it is not for conversations"
        raise bad_value("model", text, "unsupported_parameter")
    own = values.get("chat_template")
    if own is not None and not exchange.service.config.trust_request_templates:
        text = "chat_template is not taken from requests on this server (--trust-request-templates)"
        raise bad_value("chat_template", text, "unsupported_parameter")
    template = own or exchange.service.chat_template
    if template is not None:
        options["chat_template"] = template
    use_tools(values.get("tools", []), values.get("tool_choice"), options, exchange)
    if "tools" in options and values.get("parallel_tool_calls") is False:
        options["parallel_tool_calls"] = False
    messages: list[dict[str, Any]] = values["messages"]
    return messages


def prompt_ids(messages: list[dict[str, Any]], options: Mapping[str, Any], chosen: Chosen) -> list[int]:
    """Tokens of the prompt that `conversation` gave messages and options for."""
    names = PromptOptions.__annotations__
    given = {name: value for name, value in options.items() if name in names}
    if options.get("tool_choice") == "none":
        given.pop("tools", None)
    return chat_ids(chosen.model.ready.engine.tokenizer, messages, given)


def use_tools(tools: list[dict[str, Any]], choice: Any, options: dict[str, Any], exchange: Exchange) -> None:
    """Puts the tools that may be called, and which must be, into `options`. Raises ApiError."""
    options.pop("tools", None)
    options.pop("tool_choice", None)
    if not tools:
        if choice is not None and choice != "none":
            raise bad_value("tool_choice", "tool_choice is given without tools: give tools too")
        return
    names = [tool["function"]["name"] for tool in tools]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise bad_value(
                f"tools[{i}].function.name", f"tools[{i}].function.name is that of an earlier tool: {name!r}"
            )
    wanted: Any = choice or "auto"
    if isinstance(choice, Mapping):
        tools, wanted = _chosen(tools, names, choice)
    asked = [i for i, tool in enumerate(tools) if _is_asked(tool, wanted)]
    options["tools"] = [_holdable(tool, i in asked, f"tools[{i}]", exchange) for i, tool in enumerate(tools)]
    if wanted != "auto":
        options["tool_choice"] = wanted
    if exchange.service.config.tool_format is not None and wanted != "none":
        options["tool_format"] = exchange.service.config.tool_format


def _chosen(tools: list[dict[str, Any]], names: list[str], choice: Mapping[str, Any]) -> tuple[list[Any], str]:
    """The tools that a choice leaves, and the engine's word for it."""
    kind = choice["type"]
    if kind not in choice:
        raise bad_value(f"tool_choice.{kind}", f"tool_choice.{kind} is missing", "missing_parameter")
    if kind == "function":
        _check_known("tool_choice.function.name", choice["function"]["name"], names)
        return tools, choice["function"]["name"]
    allowed = [one["function"]["name"] for one in choice["allowed_tools"]["tools"]]
    for i, name in enumerate(allowed):
        _check_known(f"tool_choice.allowed_tools.tools[{i}].function.name", name, names)
    return [t for t in tools if t["function"]["name"] in allowed], choice["allowed_tools"]["mode"]


def _check_known(place: str, name: str, names: list[str]) -> None:
    if name not in names:
        raise bad_value(place, f"{place} must be one of {', '.join(names)}, not {name!r}")


def _is_asked(tool: Mapping[str, Any], wanted: str) -> bool:
    """Whether arguments that can't be held to the schema are an error."""
    return wanted == "required" or wanted == tool["function"]["name"] or bool(tool["function"].get("strict"))


@lru_cache(maxsize=256)
def fault_of(schema: str) -> str | None:
    """Why no grammar can hold texts to a schema, None if one can."""
    try:
        JsonSchemaCompiler.compile(schema)
    except GrammarError as error:
        return str(error)
    return None


def _holdable(tool: dict[str, Any], asked: bool, place: str, exchange: Exchange) -> dict[str, Any]:
    """The tool, or one with any arguments if no grammar can hold them and none asks for that; a header says so."""
    function = dict(tool["function"])
    function.pop("strict", None)
    if "parameters" in function:
        fault = fault_of(json.dumps(function["parameters"]))
        if fault is not None:
            if asked:
                where = f"{place}.function.parameters"
                raise bad_value(where, f"{where}: {fault}", "invalid_json_schema")
            known = exchange.extra.get("X-Oxillama-Warnings", "")
            name = function["name"].encode("ascii", "replace").decode()
            text = f"{place}: the arguments of {name} are held to no schema"
            exchange.extra["X-Oxillama-Warnings"] = f"{known}; {text}" if known else text
            function["parameters"] = ANY_ARGUMENTS
    return {"type": "function", "function": function}
