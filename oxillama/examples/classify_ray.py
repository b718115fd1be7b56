"""Batch classification with Ray Data: a column of labels for a data set of any size, on as many machines as there are.

    pip install "ray[data]"
    python -m oxillama.examples.classify_ray reviews.parquet labelled/ --column review -m qwen3-4b.gguf --workers 8

Each worker is a process with an engine of its own, which computes a batch of rows together. A label is one of the
list, and the same one however Ray divides the rows: a job that is repeated agrees with itself.
"""

import argparse
import sys
from typing import Any

import ray

import oxillama as ox
import oxillama.data as oxd

LABELS = ["good", "bad", "mixed"]
SAMPLE = ["The kettle boils fast, and I love it.", "A lamp that broke on its second day.", "A chair. It is fine."]


def classify(rows: Any, column: str, model: str | None = None, workers: int = 1, cpus: int = 1) -> Any:
    """The data set with the columns "label", and "label_error" for rows that fail, which then have no label."""
    question = "Is this review good, bad or mixed? Answer with one word.\n\n{" + column + "}"
    label = oxd.Generate(
        model,
        messages=[{"role": "user", "content": question}],
        output="label",
        choices=LABELS,
        temperature=0.0,
        on_error="column",
    )
    return rows.map_batches(**label.ray(concurrency=workers, num_cpus=cpus, batch_size=64))


def read(path: str) -> Any:
    """The data set of a Parquet file or folder. Raises ConfigError if Ray finds none there."""
    try:
        return ray.data.read_parquet(path)
    except (OSError, ValueError) as error:  # not there; no such file
        raise ox.ConfigError(f"{path} can't be read as Parquet: {type(error).__name__}: {error}") from None


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="labels for a column of a data set")
    parser.add_argument("input", nargs="?", help="Parquet file or folder; without it, three sample reviews")
    parser.add_argument("output", nargs="?", help="folder for Parquet files; without it, rows are printed")
    parser.add_argument("--column", default="review")
    parser.add_argument("-m", "--model", help="GGUF file that all machines can read")
    parser.add_argument("--workers", type=int, default=1, help="processes, each with the model")
    parser.add_argument("--cpus", type=int, default=1, help="cores of each")
    a = parser.parse_args(arguments)
    sample = [{a.column: text} for text in SAMPLE]
    rows = read(a.input) if a.input else ray.data.from_items(sample)
    labelled = classify(rows, a.column, a.model, a.workers, a.cpus)
    if a.output:
        labelled.write_parquet(a.output)
    else:
        for row in labelled.take_all():
            print(f"{row['label'] or row['label_error']}: {row[a.column]}")


if __name__ == "__main__":
    try:
        main()
    except (ox.OxiLlamaError, OSError) as error:  # a file that is missing, or no model
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
