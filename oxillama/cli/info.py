"""Command `oxillama info`, and `show`, which is the same: what is in a file, and whether it runs."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from typing import Any

import oxillama
from oxillama._util.checks import check_int
from oxillama.cli.files import model_file
from oxillama.cli.values import read_offload
from oxillama.cli.verdict import Verdict, verdict_of
from oxillama.config import MAX_CONTEXT, OffloadPolicy
from oxillama.core.loading import kept_bytes, shipped_model
from oxillama.gguf import GGUFFile
from oxillama.gguf.info import kv_bytes_per_token
from oxillama.gguf.values import printable
from oxillama.models import load_model
from oxillama.models.weights import Weights
from oxillama.offload import MemoryPressureProbe
from oxillama.offload.survey import Survey, survey
from oxillama.store.facts import header_facts

__all__ = ["info"]

MIB = 1 << 20


def info(args: argparse.Namespace) -> int:
    """Prints a file's contents, its memory needs, and whether its architecture and metadata are supported."""
    if args.context_size is not None:
        check_int("--context-size", args.context_size, 1, MAX_CONTEXT)
    if args.file is not None and args.model is not None:
        raise oxillama.ConfigError("FILE and --model are both given: give one of them")
    path = model_file("FILE", args.file) if args.model is None else model_file("--model", args.model)
    with oxillama.gguf.open(path or shipped_model()) as file:
        verdict, policy = verdict_of(file), read_offload(args)
        if args.json:
            print(json.dumps(as_json(file, verdict, args.context_size), indent=2))
            return 0
        kept = None if verdict.spec is None else kept_bytes(verdict.spec.states)
        print(oxillama.gguf.describe(file, context_size=args.context_size, kept=kept))
        if policy is not None and verdict.runs:
            for name, line in offload_lines(file, policy):
                print(f"{name:<18}{line}")
        if verdict.runs:
            print(f"{'made for':<18}{verdict.made_for}")
        print(f"{'runs':<18}{printable(str(verdict))}")
    return 0


def as_json(file: GGUFFile, verdict: Verdict, context_size: int | None) -> dict[str, Any]:
    """Facts of a file under names; of its metadata everything but lists. context_size: for the memory estimate."""
    facts, metadata, spec = header_facts(file), file.metadata, verdict.spec
    types: dict[str, dict[str, int]] = {}
    for tensor in file.tensors.values():
        one = types.setdefault(tensor.type, {"tensors": 0, "bytes": 0})
        one["tensors"] += 1
        one["bytes"] += tensor.nbytes
    per_token, fixed = (kv_bytes_per_token(metadata), 0) if spec is None else kept_bytes(spec.states)
    tokens = context_size or min(4096, spec.context_length if spec is not None else 4096)
    return {
        "file": None if file.path is None else str(file.path), "parts": len(file.shards), "size": file.n_bytes,
        "version": file.version, "architecture": facts.architecture, "name": facts.name,
        "parameters": facts.n_parameters, "quantization": facts.quant,
        "context_length": None if spec is None else spec.context_length,
        "embedding_length": None if spec is None else spec.n_embd,
        "runs": verdict.runs, "reason": verdict.why or None, "verified": verdict.verified or None,
        "made_for": verdict.made_for or None,
        "tensor_types": types,
        "memory": {"weights": file.n_bytes, "context_size": tokens,
                   "request": None if per_token is None else int(per_token * tokens) + int(fixed)},
        "metadata": {key: value for key, value in metadata.items() if isinstance(value, str | bool | int)
                     or (isinstance(value, float) and math.isfinite(value))},
    }  # fmt: skip


def offload_lines(file: GGUFFile, policy: OffloadPolicy) -> Iterator[tuple[str, str]]:
    """The weights that would stay in memory and those that would be paged. Raises ConfigError, as loading would."""
    found: list[Survey] = []

    def look(weights: Weights) -> tuple[()]:
        found.append(survey(weights, policy, MemoryPressureProbe(), repack=True))
        return ()

    load_model(file, place=look)
    (s,) = found
    plan = s.layout.plan(s.budget - s.constant)
    yield (
        "offload",
        f"{s.budget / MIB:,.2f} MiB for weights; at least {s.least / MIB:,.2f}, all of them {s.most / MIB:,.2f}",
    )
    stays = s.constant + sum(s.layout.items[i].held for i in plan.resident)
    slots = s.layout.slots_nbytes(plan)
    yield "", f"{stays / MIB:,.2f} MiB stay, in {slots / MIB:,.2f} MiB the others come and go"
    experts = sum(m.nbytes for i, m in enumerate(s.layout.items) if m.is_experts and i not in plan.resident)
    of_experts = f", and what a token uses of {experts / MIB:,.2f} MiB of experts" if experts else ""
    yield "", f"{(s.layout.paged_bytes(plan) - experts) / MIB:,.2f} MiB are read for each step{of_experts}"
