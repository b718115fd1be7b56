"""Flags made of settings: what a class of options declares is what a command takes."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from oxillama._util.settings import Setting, settings_of
from oxillama.sampler_config import CONSTRAINTS, SamplerConfig
from oxillama.text_settings import DraftSettings, ServingSettings, TextSettings

__all__ = ["LEFT_OUT", "add_flags", "draft_settings", "flag_of", "given", "sampling_settings", "text_settings"]

# Settings that no flag of a command that writes texts gives, and why.
LEFT_OUT = {
    **dict.fromkeys(CONSTRAINTS, "flags of their own read them from files, too"),
    "schema_mode": "stands beside these",
    "logit_bias": "has a flag of its own, ID=X",
    "draft": "has a flag of its own, which loads the file",
    "lora": "--lora loads and applies adapters",
    "echo": "of `oxillama run` alone, which prints the prompt as it was typed",
    "n": "one text is written at a time",
    "logprobs": "texts are printed, and no tokens",
    "prompt_logprobs": "texts are printed, and no tokens",
    "logits_processors": "functions",
    "stopping_criteria": "functions",
    "cancel_token": "Ctrl-C ends a text",
    "tool_use": "`oxillama chat --tools` makes it",
    "priority": "no other request is there",
    "deadline_from": "no other request is there to wait for",
    "cache_prompt": "no other request is there",
    "cache_salt": "no other request is there",
}


def sampling_settings() -> list[Setting]:
    """Fields of `SamplerConfig` that are flags."""
    return [one for name, one in settings_of(SamplerConfig).items() if name not in LEFT_OUT]


def text_settings() -> list[Setting]:
    """Other options of a text that are flags."""
    found = [one for kind in (TextSettings, ServingSettings) for one in settings_of(kind).values()]
    return [one for one in found if one.name not in LEFT_OUT]


def draft_settings() -> list[Setting]:
    """Options of drafts that are flags, beside --draft."""
    return [one for name, one in settings_of(DraftSettings).items() if name not in LEFT_OUT]


def flag_of(name: str) -> str:
    """The flag of a setting."""
    return f"--{name.replace('_', '-')}"


WIDE = 40  # columns of choices that are told by name instead, so that a line of 80 holds them


def add_flags(group: argparse._ArgumentGroup, known: Iterable[Setting], short: dict[str, str] | None = None) -> None:
    """Adds a flag for each setting. short: further names of flags, by setting."""
    for one in known:
        names = [name for name in ((short or {}).get(one.name),) if name] + [flag_of(one.name)]
        brief = one.brief.replace("%", "%%")
        shown = f"{brief}{_default(one)}"
        if one.kind == "bool":
            action = argparse.BooleanOptionalAction if one.default is None else "store_true"
            group.add_argument(*names, action=action, default=None, help=brief)
        elif one.item is not None:
            shown = f"{brief}; may be repeated"
            group.add_argument(*names, action="append", type=one.item, metavar=_metavar(one), help=shown)
        elif one.choices:
            listed = ", ".join(one.choices)
            named = ("NAME", f"{shown}; one of {listed}") if len(listed) > WIDE else (None, shown)
            group.add_argument(*names, choices=one.choices, metavar=named[0], help=named[1])
        else:
            kind = {"int": int, "float": float}.get(one.kind, str)
            group.add_argument(*names, type=kind, metavar=_metavar(one), help=shown)


def given(args: argparse.Namespace, known: Iterable[Setting]) -> dict[str, Any]:
    """Keywords for those of the settings whose flags were given."""
    found = {one.name: getattr(args, one.name) for one in known}
    return {name: value for name, value in found.items() if value is not None}


def _metavar(one: Setting) -> str:
    if one.metavar:
        return one.metavar
    return {int: "ID", str: "TEXT"}[one.item] if one.item is not None else "N" if one.kind == "int" else "X"


def _default(one: Setting) -> str:
    if "default" in one.brief:
        return ""
    default = "random" if one.name == "seed" else one.default
    return "" if default is None or one.kind == "bool" else f"; default {default}"
