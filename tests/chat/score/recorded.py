"""Recorded templates: what two other implementations make of conversations.

A file has `template`, `bos_token`, `eos_token`, and `prompts`, {NAME or NAME/VARIANT: prompt}. NAME is a conversation
of `conversations.json`, whose calls have arguments as JSON text. A variant is `no_thinking` (enable_thinking=False) or
VARIABLE=JSON; without one, enable_thinking is True. Of a prompt, `prompt` is llama.cpp's text, `transformers` is
"equal" or what transformers makes instead, `same_as` the name of an equal one, `error` says that there is none. The
clock stood at NOW.
"""

import copy
import datetime
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["NOW", "Conversations", "Prompt", "Template", "templates"]

NOW = datetime.datetime(2026, 1, 15, 12)
Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Conversations:
    """What is said, and the tools that there are."""

    data: dict[str, Any]

    def options(self, name: str, template: str) -> dict[str, Any]:
        """Messages, and the options of rendering them, of a prompt's name."""
        said = self.data["conversations"][name]
        tools = self.data["tools"][: self.data["first_tools"].get(template)] if said.get("tools") else None
        ends = {key: said[key] for key in ("add_generation_prompt", "continue_final_message") if key in said}
        return {"messages": copy.deepcopy(said["messages"]), "tools": tools, **ends}


@dataclass(frozen=True)
class Prompt:
    """A prompt, and what it is made of.

    kind: "agreed" if both made it; "continued" if it ends within a message, which one alone can; or else "own".
    """

    name: str
    kind: str
    text: str
    variables: dict[str, Any]
    options: dict[str, Any]

    def with_objects(self) -> "Prompt":
        """The same with arguments of calls as objects."""
        options = copy.deepcopy(self.options)
        for message in options["messages"]:
            for call in message.get("tool_calls", ()):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        return Prompt(self.name, self.kind, self.text, self.variables, options)


@dataclass(frozen=True)
class Template:
    """A recorded file."""

    name: str
    data: dict[str, Any]
    conversations: Conversations

    @property
    def source(self) -> str:
        found: str = self.data["template"]
        return found

    def prompts(self, variables: frozenset[str]) -> Iterator[Prompt]:
        """Those that there are, with values for the variables that the template reads."""
        recorded = self.data["prompts"]
        for name, found in recorded.items():
            found = recorded[found["same_as"]] if "same_as" in found else found
            if "error" in found:
                continue
            conversation, _, variant = name.partition("/")
            kind = "agreed" if found.get("transformers") == "equal" else "own"
            given: dict[str, Any] = {"enable_thinking": variant != "no_thinking"}
            if "=" in variant:
                variable, _, value = variant.partition("=")
                given[variable] = json.loads(value)
            yield Prompt(
                name,
                "continued" if conversation.startswith("continue") else kind,
                found["prompt"],
                {key: value for key, value in given.items() if key in variables},
                self.conversations.options(conversation, self.name),
            )


def templates(folder: Path) -> Iterator[Template]:
    """The templates of a folder, without the files that add other words to one (NAME.B.json)."""
    conversations = Conversations(json.loads((folder / "conversations.json").read_text(encoding="utf-8")))
    for path in sorted(folder.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        if "template" in data:
            yield Template(path.stem, data, conversations)
