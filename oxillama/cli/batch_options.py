"""Flags of `oxillama batch`."""

from __future__ import annotations

import argparse

from oxillama.cli.options import add_text_options

__all__ = ["add_batch_options"]


def add_batch_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.add_argument("source", metavar="IN", help="requests (OpenAI's batch JSONL), or a .parquet, .csv or .jsonl")
    parser.add_argument("destination", metavar="OUT", help="file to write; OUT.partial has what is finished until then")
    group = parser.add_argument_group("prompts of a table's rows, one of these; IN has requests without them")
    one = group.add_mutually_exclusive_group()
    one.add_argument("--prompt-column", metavar="NAME", help="the column of prompts")
    one.add_argument("--template", metavar="TEXT", help='text with columns in braces, as "Summarise: {text}"')
    one.add_argument("--messages-column", metavar="NAME", help="the column of messages, for the model's chat template")
    group.add_argument("--output-column", metavar="NAME", help="the column of answers; default answer")
    group.add_argument("--details", action="store_true", help="add columns of finish reasons and numbers of tokens")
    group = parser.add_argument_group("job")
    group.add_argument("--limit", type=int, metavar="N", help="the first N rows; without it, the job goes on later")
    group.add_argument("--retry-failed", action="store_true", help="compute anew what failed before")
    group.add_argument("--progress", action="store_true", help="show a bar even if stderr is no terminal")
    group.add_argument(
        "--served-model-name", action="append", default=[], metavar="NAME",
        help="what requests may call the model; * takes any; may be repeated",
    )  # fmt: skip
    group.add_argument("--tool-format", metavar="NAME", help="how the model writes calls, if its template doesn't tell")
    add_text_options(parser)
