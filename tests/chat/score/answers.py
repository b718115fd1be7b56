"""Recorded templates with their answers: files of a folder."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Recorded", "read_folder"]


class Recorded:
    """One file: a template, and what models write for it.

    data: the file. source: the template, which other variants leave out. tools: every tool of the conversations.
    """

    def __init__(self, data: dict[str, Any], source: str, conversations: dict[str, Any]) -> None:
        self.data, self.source, self.conversations = data, source, conversations
        self.name = data["template_name"]
        self.label = self.name if data.get("variant", "A") == "A" else f"{self.name}.{data['variant']}"
        self.bos, self.eos = data["bos_token"], data["eos_token"]

    def tools(self, settings: dict[str, Any]) -> list[dict[str, Any]] | None:
        """The tools that a case's settings name."""
        named = settings.get("tools")
        if named == "ping":
            return list(self.conversations["ping"])
        if not named:
            return None
        return list(self.conversations["tools"])[: self.conversations["first_tools"].get(self.name)]


def read_folder(folder: Path, only: str = "") -> Iterator[Recorded]:
    """The files of a folder, and of its folders, whose name has `only` in it."""
    shared: dict[str, Any] | None = None
    places = [folder, *folder.parents[:2], *(p for p in folder.iterdir() if p.is_dir()), folder.parent / "shared"]
    for place in places:
        if (place / "conversations.json").exists():
            shared = json.loads((place / "conversations.json").read_text())
            break
    if shared is None:
        raise SystemExit(f"{folder} has no conversations.json")
    files = sorted(path for path in folder.rglob("*.json") if path.name != "conversations.json")
    sources: dict[str, str] = {}
    datas = []
    for path in [*files, *sorted(p for place in places[1:] for p in place.glob("*.json"))]:
        if path.name == "conversations.json":
            continue
        data = json.loads(path.read_text())
        if not isinstance(data, dict) or "template_name" not in data:
            continue
        if "template" in data:
            sources.setdefault(data["template_name"], data["template"])
        if path in files:
            datas.append(data)
    for data in datas:
        if only in data["template_name"] and data["template_name"] in sources:
            yield Recorded(data, sources[data["template_name"]], shared)
