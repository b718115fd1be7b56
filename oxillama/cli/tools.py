"""Tool commands: `oxillama info`, `tokenize`, `embed`, `rerank` and `show-config`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

import oxillama
from oxillama._util.checks import check_int
from oxillama.cli.files import model_file
from oxillama.cli.options import load_engine, read_prompt
from oxillama.cli.values import read_offload
from oxillama.config import MAX_CONTEXT, OffloadPolicy
from oxillama.core.embedding import read_pooling
from oxillama.core.loading import kept_bytes, shipped_model
from oxillama.gguf import GGUFFile
from oxillama.gguf.values import printable
from oxillama.models import find_architecture, load_model
from oxillama.models.classifier import has_classifier
from oxillama.models.registry import UNVERIFIED, read_model_spec
from oxillama.models.weights import Weights
from oxillama.offload import MemoryPressureProbe
from oxillama.offload.survey import Survey, survey
from oxillama.sampling.file_defaults import read_sampling_defaults

__all__ = ["embed", "info", "rerank", "show_config", "tokenize"]

MIB = 1 << 20


def info(args: argparse.Namespace) -> int:
    """Prints a file's contents, its memory needs, and whether its architecture and metadata are supported."""
    if args.context_size is not None:
        check_int("--context-size", args.context_size, 1, MAX_CONTEXT)
    if args.file is not None and args.model is not None:
        raise oxillama.ConfigError("FILE and --model are both given: give one of them")
    path = model_file("FILE", args.file) if args.model is None else model_file("--model", args.model)
    with oxillama.gguf.open(path or shipped_model()) as file:
        kept, made_for = None, ""
        try:
            made_for, spec = purpose(file), read_model_spec(file)
            kept = kept_bytes(spec.states)
            read_sampling_defaults(file.metadata, spec.context_length)
            verified = find_architecture(file.metadata.arch).verified
            verdict = f"yes, {verified if verified == UNVERIFIED else f'verified with {verified}'}"
        except oxillama.LoadError as error:
            verdict = f"no: {error}"
        print(oxillama.gguf.describe(file, context_size=args.context_size, kept=kept))
        policy = read_offload(args)
        if policy is not None and verdict.startswith("yes"):
            for name, line in offload_lines(file, policy):
                print(f"{name:<18}{line}")
        if verdict.startswith("yes"):
            print(f"{'made for':<18}{made_for}")
        print(f"{'runs':<18}{printable(verdict)}")
    return 0


def purpose(file: GGUFFile) -> str:
    """The purpose of a file's model: text, embeddings, or scores; and the commands for it."""
    spec, metadata = read_model_spec(file), file.metadata
    if has_classifier(spec, Weights(file)):
        return "ranking documents (oxillama rerank)"
    if spec.denoises:
        return "denoising texts (oxillama diffuse)"
    if not spec.causal or f"{metadata.arch}.pooling_type" in metadata:
        return f"embedding texts (oxillama embed), pooling {read_pooling(metadata)}"
    if spec.decoder_start is not None:
        return "generating text from a prompt that an encoder reads (oxillama run), embedding texts (oxillama embed)"
    return "generating text (oxillama run, chat)"


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


def tokenize(args: argparse.Namespace) -> int:
    """Prints token ids."""
    text = read_prompt(args.text, "TEXT")
    tokenizer = oxillama.Tokenizer.from_gguf(model_file("--model", args.model) or shipped_model())
    ids = tokenizer.encode(text, add_special=not args.no_special, parse_special=args.parse_special)
    if args.pieces:
        for token in ids:
            print(f"{token}\t{tokenizer.token_bytes(token).decode('utf-8', 'backslashreplace')!r}")
    else:
        print(json.dumps(ids))
    return 0


def embed(args: argparse.Namespace) -> int:
    """Prints embeddings."""
    texts = [read_prompt(text, "TEXT") for text in args.text or [None]]
    if "" in texts:
        raise oxillama.ConfigError("TEXT is empty: give at least one character")
    options = {"normalize": False if args.no_normalize else None, "dimensions": args.dimensions, "dtype": args.dtype}
    with load_engine(args) as engine:
        found = engine.embed(texts, pooling=args.pooling, **options)
    rows = [row.tolist() for row in found]
    print(json.dumps(rows[0] if len(rows) == 1 else rows))
    return 0


def rerank(args: argparse.Namespace) -> int:
    """Prints documents in the order of their scores."""
    documents = args.documents
    if documents in ([], ["-"]):
        documents = [line for line in read_prompt("-" if documents else None, "TEXT").splitlines() if line.strip()]
    if not documents or "" in documents:
        raise oxillama.ConfigError("TEXT is empty: give at least one document")
    with load_engine(args) as engine:
        found = engine.rerank(args.query, documents, top_n=args.top_n, template=args.template)
    for one in found:
        print(json.dumps({"index": one.index, "score": one.score, "text": documents[one.index]}, ensure_ascii=False))
    return 0


def show_config(args: argparse.Namespace) -> int:
    """Prints the tiers of kernels, compiler and threads."""
    oxillama.show_config()
    return 0
