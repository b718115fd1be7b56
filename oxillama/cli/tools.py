"""Tool commands: `oxillama tokenize`, `embed`, `rerank` and `show-config`."""

from __future__ import annotations

import argparse
import json

import oxillama
from oxillama.cli.files import model_file
from oxillama.cli.options import load_engine, read_prompt
from oxillama.core.loading import shipped_model

__all__ = ["embed", "rerank", "show_config", "tokenize"]


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
