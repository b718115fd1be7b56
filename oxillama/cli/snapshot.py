"""Snapshot command, `oxillama snapshot info`."""

from __future__ import annotations

import argparse
import os

from oxillama.errors import ConfigError
from oxillama.gguf.values import printable
from oxillama.snapshot import SnapshotInfo, snapshot_info

__all__ = ["described", "snapshot"]


def snapshot(args: argparse.Namespace) -> int:
    """Prints the summary of a snapshot, without its model."""
    if not args.file:
        raise ConfigError("FILE is empty: give a snapshot")
    for name, value in described(snapshot_info(os.path.expanduser(args.file))):
        print(f"{name:<18}{printable(value)}")
    return 0


def described(info: SnapshotInfo) -> list[tuple[str, str]]:
    """Names and texts, in order, of the fields that the snapshot has."""
    fingerprint, hub = info.fingerprint, info.hub
    lines = [
        ("format", f"{info.magic.decode()} version {info.version}, {info.kind}"),
        ("written by", info.written_by + (f", kernels for {info.tier}" if info.tier else "")),
        ("architecture", info.arch_id),
        ("model", info.model_path or "in memory"),
        ("  hub", "" if hub is None else f"{hub['repo_id']}, {hub['filename']} at {hub['revision']}"),
        ("  size", f"{fingerprint.file_size:,} bytes"),
        ("  head, tail", f"{fingerprint.head_hash.hex()[:16]}, {fingerprint.tail_hash.hex()[:16]}"),
        ("  tensors", fingerprint.tensor_hash.hex()[:16]),
        ("tokenizer", info.tokenizer_path or ""),
        ("context", f"{info.max_context_length} tokens"),
        ("threads", str(info.num_threads)),
        ("tokens", f"{info.tokens_count}, {info.computed_count} of them computed, in {info.kv_type}"),
        ("adapters", ", ".join(digest[:16] for digest in info.adapters)),
        ("needs", "" if info.base is None else f"the file {info.base} beside it"),
        ("shared blocks", str(info.shared_blocks or "")),
        ("sections", f"{len(info.sections)}, {sum(n for _, n in info.sections):,} bytes" if info.sections else ""),
    ]
    return [(name, text) for name, text in lines if text]
