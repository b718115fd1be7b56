"""Options that commands share, and the objects that they configure."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import oxillama
from oxillama._util.signals import DeferredInterrupt
from oxillama._util.text_files import without_mark
from oxillama.cli.constraints import add_constraints, read_constraints
from oxillama.cli.files import model_file, named_file, named_model, scaled
from oxillama.cli.flags import add_flags, draft_settings, given, sampling_settings, text_settings
from oxillama.cli.progress import LoadingLine
from oxillama.cli.values import add_offload, biases, pairs, read_offload, size_of

if TYPE_CHECKING:
    from oxillama.engine import Engine

__all__ = [
    "add_engine_options",
    "add_model_option",
    "add_text_options",
    "draft_options",
    "load_engine",
    "read_prompt",
    "text_options",
]

NAMED = ("lookup", "grammar")  # drafts without a file


def add_model_option(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Adds the options that name a model."""
    parser.add_argument(
        "-m", "--model", metavar="FILE",
        help="GGUF file, a name of `oxillama list`, or hf:OWNER/REPO[:QUANT] of the Hugging Face Hub; default: the "
        "model that ships with oxillama",
    )  # fmt: skip


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of loading a model."""
    group = parser.add_argument_group("model")
    add_model_option(group)
    group.add_argument("-c", "--context-size", type=int, metavar="N", help="tokens of prompt and output together")
    group.add_argument("-t", "--threads", type=int, metavar="N", help="default: see `oxillama show-config`")
    group.add_argument("--kv-type", default="f16", metavar="TYPE", help="f16 (default), f32, q8_0 or q4_0")
    group.add_argument("--kv-budget", metavar="SIZE", help="memory for keys and values, as 800M or 4G")
    group.add_argument("--chunk-size", type=int, default=512, metavar="N", help="tokens of a step; default 512")
    group.add_argument("--no-repack", action="store_true", help="leave the weights as they are in the file")
    group.add_argument(
        "--packed", nargs="?", const=True, default=False, metavar="FILE",
        help="map repacked weights, which processes share, from a file of `oxillama pack`; without FILE from the cache",
    )  # fmt: skip
    group.add_argument(
        "--portable", action="store_true",
        help="multiply BF16 weights as every CPU can: equal bits on all of them, and slower prompts on some",
    )  # fmt: skip
    add_offload(group)
    group.add_argument(
        "--rope", action="append", default=[], metavar="KEY=VALUE", help="e.g. scaling=yarn and factor=4 (RopeConfig)"
    )
    group.add_argument(
        "--override", action="append", default=[], metavar="KEY=VALUE", help="replace metadata; VALUE is JSON or text"
    )
    group.add_argument("--lora", action="append", default=[], metavar="FILE", help="apply an adapter; may be repeated")
    group.add_argument(
        "--lora-scaled", action="append", default=[], nargs=2, metavar=("FILE", "X"), help="the same, with a scale"
    )


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of generating text with a model."""
    add_flags(parser.add_argument_group("output"), text_settings(), {"max_tokens": "-n"})
    group = parser.add_argument_group("sampling")
    group.description = "Defaults are those that the model's file gives (`oxillama info`), and else the ones here."
    add_flags(group, sampling_settings())
    group.add_argument(
        "--logit-bias", action="append", default=[], metavar="ID=X",
        help="add X to this token's logit, -inf bans it; may be repeated; `oxillama tokenize` tells ids",
    )  # fmt: skip
    add_constraints(parser)
    group = parser.add_argument_group("speculative decoding", "It changes no text, but with --acceptance rejection.")
    group.add_argument("--draft", metavar="FILE", help="a smaller model with the same tokens; or lookup, or grammar")
    add_flags(group, draft_settings())
    add_engine_options(parser)


def load_engine(args: argparse.Namespace) -> Engine:
    """The engine of a command line, loaded with a line of progress if that takes long.

    Ctrl-C counts between tensors, and when it is loaded: loading imports modules.
    """
    options, adapters = engine_options(args), adapters_of(args)
    with DeferredInterrupt() as interrupt:
        from oxillama.core.loading import load_parts

        config = oxillama.EngineConfig(**options)
        with LoadingLine(interrupt) as line:
            engine = oxillama.Engine(config, parts=load_parts(config, line.update))
        for path, scale in adapters:
            engine.apply_lora(path, scale)
        return engine


def adapters_of(args: argparse.Namespace) -> list[tuple[str, float]]:
    """Files of adapters with their scales. ConfigError for a scale that is no number."""
    return [(named_file("--lora", path), 1.0) for path in args.lora] + scaled("--lora-scaled", args.lora_scaled)


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """Keywords for `oxillama.load`."""
    return {
        "model_path": model_file("--model", args.model),
        "context_size": args.context_size,
        "num_threads": args.threads,
        "kv_type": args.kv_type,
        "kv_budget": None if args.kv_budget is None else size_of("--kv-budget", args.kv_budget),
        "prefill_chunk_size": args.chunk_size,
        "repack": not args.no_repack,
        "packed": args.packed if args.packed is False or args.packed is True else named_file("--packed", args.packed),
        "portable": args.portable,
        "offload": read_offload(args),
        "rope": pairs("--rope", args.rope) or None,
        "overrides": pairs("--override", args.override) or None,
    }


@contextlib.contextmanager
def draft_options(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Keywords of `Engine.stream` for the draft, which stays loaded until the block ends."""
    options = given(args, draft_settings())
    if args.draft is not None:
        options["draft"] = args.draft
    with contextlib.ExitStack() as closing:
        if options.get("draft", "lookup") not in NAMED:
            file = named_model("--draft", args.draft)
            with DeferredInterrupt():
                options["draft"] = closing.enter_context(oxillama.DraftModel(file, num_threads=args.threads))
        yield options


def text_options(args: argparse.Namespace) -> dict[str, Any]:
    """Keywords for `Engine.stream`."""
    found = given(args, [*text_settings(), *sampling_settings()]) | read_constraints(args)
    if args.logit_bias:
        found["logit_bias"] = biases("--logit-bias", args.logit_bias)
    return found


def read_prompt(given: str | None, name: str) -> str:
    """The text given, or standard input for "-" or, unless that is a terminal, for nothing."""
    if given is not None and given != "-":
        return given
    if sys.stdin is None:
        raise oxillama.ConfigError(f"{name} is missing, and standard input is closed: give it as an argument")
    if given is None and sys.stdin.isatty():
        raise oxillama.ConfigError(f"{name} is missing: give it as an argument, or - to read standard input")
    buffer = getattr(sys.stdin, "buffer", None)
    if buffer is None:  # replaced by a text stream in memory
        return without_mark(sys.stdin.read())
    try:
        return str(buffer.read(), "utf-8-sig")  # a file may begin with a byte order mark, which is no text
    except UnicodeDecodeError as error:
        raise oxillama.ConfigError(f"standard input is not UTF-8 at byte {error.start}: text is needed") from None
