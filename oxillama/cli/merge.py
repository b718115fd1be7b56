"""Merge command, `oxillama merge-lora`."""

from __future__ import annotations

import argparse
import sys

import oxillama
from oxillama.cli.files import named_file, named_model, output_file, scaled

__all__ = ["merge_lora"]


def merge_lora(args: argparse.Namespace) -> int:
    """Writes a model's file with adapters in its weights; the summary goes to stderr."""
    destination = output_file("OUT", args.destination)  # before anything is downloaded
    summary = oxillama.merge_lora(
        named_model("BASE", args.base),
        [(named_file("ADAPTER", args.adapter), args.scale), *scaled("--also", args.also)],
        destination,
        type=args.type,
        num_threads=args.threads,
    )
    other = [f"{name} became {after} ({before})" for name, before, after in summary.tensors if before != after]
    print("\n".join([*other, f"{len(summary.tensors)} tensors changed"]), file=sys.stderr)
    return 0
