"""Structured extraction from a CSV: one column of free text becomes columns of values.

    python -m oxillama.examples.extract_csv reviews.csv extracted.csv --column text -m qwen3-4b-q4_k_m.gguf

The schema is held while the model writes: every row that comes back is valid JSON with exactly these fields. Rows are
computed together, and each as if it were alone, so a second run of the job writes the same file.
"""

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import oxillama as ox

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "product": {"type": "string", "maxLength": 40},
        "sentiment": {"enum": ["good", "bad", "mixed"]},
        "stars": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["product", "sentiment", "stars"],
}
COLUMNS = [*SCHEMA["properties"], "error"]
SAMPLE = ["The kettle boils fast, and I love it.", "A lamp that broke on its second day.", "A chair. It is fine."]
QUESTION = "Which product is this review about, and how does its author like it? Answer with JSON.\n\n"


def extract(engine: ox.Engine, texts: Iterable[str]) -> Iterator[dict[str, object]]:
    """A row of values for each text, in order; a text that can't be read gives the reason in the column "error"."""
    prompts = (engine.chat_tokens([{"role": "user", "content": QUESTION + text}]) for text in texts)
    greedy = ox.SamplerConfig.greedy()
    for result in engine.batch(prompts, json_schema=SCHEMA, sampler=greedy, max_tokens=120, errors="yield"):
        if isinstance(result, ox.BatchFailure):
            yield {"error": str(result.error)}
        elif result.finish_reason != "stop":  # the text ends before the object does
            yield {"error": f"unfinished after {result.usage.completion_tokens} tokens"}
        else:
            yield json.loads(result.text)


def read_rows(path: str, column: str) -> tuple[list[str], list[dict[str, str]]]:
    """Names of the columns, and the rows. Raises ConfigError for a file that isn't such a table; OSError."""
    with open(path, newline="", encoding="utf-8-sig") as file:  # spreadsheets put a mark before the header
        reader = csv.DictReader(file, restval="")
        try:
            names, rows = list(reader.fieldnames or []), list(reader)
        except (csv.Error, UnicodeDecodeError) as error:
            raise ox.ConfigError(f"{path}: line {reader.line_num + 1} can't be read: {error}") from None
    if column not in names:
        raise ox.ConfigError(f"{path} has no column {column!r}: its header is {names}; --column names another one")
    if taken := [name for name in names if name in COLUMNS or names.count(name) > 1]:
        raise ox.ConfigError(f"{path}: the column {taken[0]!r} would be there twice: rename it")
    if long := [i for i, row in enumerate(rows, 1) if None in row]:
        raise ox.ConfigError(f"{path}: row {long[0]} has more fields than the header")
    return names, rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="values from a CSV file's column of text")
    parser.add_argument("input", nargs="?", help="CSV with a header; without it, three sample reviews")
    parser.add_argument("output", nargs="?", help="CSV to write; without it, standard output")
    parser.add_argument("--column", default="text")
    parser.add_argument("-m", "--model", help="GGUF file; without it, the small model that ships")
    a = parser.parse_args(arguments)
    names, rows = [a.column], [{a.column: text} for text in SAMPLE]
    if a.input:
        names, rows = read_rows(a.input, a.column)
        if a.output and Path(a.output).exists() and Path(a.output).samefile(a.input):
            raise ox.ConfigError(f"{a.output} is the input: a job that is stopped would lose it; name another output")
    with ox.load(a.model) as engine:  # before the output is opened, which ends what an earlier run wrote
        target = open(a.output, "w", newline="", encoding="utf-8") if a.output else sys.stdout  # noqa: SIM115
        writer = csv.DictWriter(target, [*names, *COLUMNS], restval="")
        writer.writeheader()
        for row, values in zip(rows, extract(engine, (row[a.column] for row in rows)), strict=True):
            writer.writerow({**row, **values})
    if a.output:
        target.close()


if __name__ == "__main__":
    try:
        main()
    except (ox.OxiLlamaError, OSError) as error:  # a file that is missing, or no model
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
