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


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="values from a CSV file's column of text")
    parser.add_argument("input", nargs="?", help="CSV with a header; without it, three sample reviews")
    parser.add_argument("output", nargs="?", help="CSV to write; without it, standard output")
    parser.add_argument("--column", default="text")
    parser.add_argument("-m", "--model", help="GGUF file; without it, the small model that ships")
    a = parser.parse_args(arguments)
    rows: list[dict[str, str]] = [{a.column: text} for text in SAMPLE]
    if a.input:
        with open(a.input, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    target = open(a.output, "w", newline="", encoding="utf-8") if a.output else sys.stdout  # noqa: SIM115
    with ox.load(a.model) as engine:
        writer = csv.DictWriter(target, [*rows[0], *COLUMNS], restval="")
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
