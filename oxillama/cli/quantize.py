"""Quantisation command, `oxillama quantize`."""

from __future__ import annotations

import argparse
import sys

import oxillama
from oxillama.cli.files import named_model, output_file
from oxillama.gguf import QuantizeSummary

__all__ = ["quantize"]


def quantize(args: argparse.Namespace) -> int:
    """Writes a file again in another type, or with --dry-run only reports the changes; the summary goes to stderr."""
    destination = output_file("OUT", args.destination)  # before anything is downloaded
    summary = oxillama.gguf.quantize_file(
        named_model("IN", args.source),
        destination,
        args.type,
        num_threads=args.threads,
        tensor_types=tensor_types(args.tensor_type),
        pure=args.pure,
        keep_output=args.keep_output,
        allow_requantize=args.allow_requantize,
        dry_run=args.dry_run,
        progress=args.progress or sys.stderr.isatty(),
    )
    if args.dry_run:
        for t in summary.tensors:
            print(f"{t.name}\t{' x '.join(map(str, t.shape))}\t{t.before}\t{t.after}")
    print(described(summary), file=sys.stderr)
    return 0


def tensor_types(given: list[str]) -> dict[str, str]:
    """PATTERN=TYPE as a mapping. Raises ConfigError for anything else."""
    found: dict[str, str] = {}
    for entry in given:
        pattern, _, type = entry.rpartition("=")
        if not pattern or not type:
            raise oxillama.ConfigError(f"--tensor-type must be PATTERN=TYPE, not {entry!r}")
        if found.setdefault(pattern, type) != type:
            raise oxillama.ConfigError(f"--tensor-type {pattern} was given twice, with {found[pattern]} and {type}")
    return found


def described(summary: QuantizeSummary) -> str:
    """A line for each tensor that could not have its format, and one for the file."""
    lines = [f"{t.name} becomes {t.after}: {t.fallback}" for t in summary.fallbacks]
    before, after = summary.bytes_before / 2**20, summary.bytes_after / 2**20
    changed = sum(t.before != t.after for t in summary.tensors)
    lines.append(
        f"{summary.file_type}: {changed} of {len(summary.tensors)} tensors changed, {before:.2f} MiB become "
        f"{after:.2f} MiB, {summary.bits_per_weight:.2f} bits per weight"
    )
    return "\n".join(lines)
