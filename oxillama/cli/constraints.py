"""Flags of constrained output."""

from __future__ import annotations

import argparse
from typing import Any

from oxillama._util.settings import settings_of
from oxillama.cli.files import read_text_file
from oxillama.sampler_config import CONSTRAINTS, SCHEMA_MODES, SamplerConfig

__all__ = ["CONSTRAINT_FLAGS", "add_constraints", "read_constraints"]

CONSTRAINT_FLAGS = {name: f"--{name.replace('_', '-')}" for name in CONSTRAINTS}


def add_constraints(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of constraints, of which at most one can be given."""
    group = parser.add_argument_group("what the text may be", "one of these; the text follows it to the end")
    one = group.add_mutually_exclusive_group()
    one.add_argument("--grammar", metavar="GBNF", help="a grammar in llama.cpp's notation")
    one.add_argument("--grammar-file", metavar="FILE", help="the same from a file")
    one.add_argument("--json-schema", metavar="JSON", help="JSON that follows this schema; {} is any")
    one.add_argument("--json-schema-file", metavar="FILE", help="the same from a file")
    group.add_argument("--schema-mode", choices=SCHEMA_MODES, help=settings_of(SamplerConfig)["schema_mode"].brief)
    one.add_argument("--regex", metavar="PATTERN", help="a text that this pattern matches as a whole")
    one.add_argument("--choices", metavar="TEXT", action="append", help="this text, or another if it is repeated")


def read_constraints(args: argparse.Namespace) -> dict[str, Any]:
    """Keywords for `Engine.stream`. Raises ConfigError for a file that isn't text, or can't be read."""
    given = {name: getattr(args, name) for name in CONSTRAINT_FLAGS}
    for name in CONSTRAINT_FLAGS:
        path = getattr(args, f"{name}_file", None)
        if path is not None:
            given[name] = read_text_file(f"{CONSTRAINT_FLAGS[name]}-file", path)
    return {name: value for name, value in (given | {"schema_mode": args.schema_mode}).items() if value is not None}
