"""Options that commands share, and the objects that they configure."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import oxillama
from oxillama._util.signals import DeferredInterrupt
from oxillama._util.text_files import without_mark
from oxillama.cli.constraints import add_constraints, read_constraints
from oxillama.cli.files import model_file, named_file, scaled
from oxillama.cli.progress import LoadingLine
from oxillama.cli.values import add_offload, biases, pairs, read_offload, size_of

if TYPE_CHECKING:
    from oxillama.engine import Engine

__all__ = [
    "SAMPLING",
    "add_engine_options",
    "add_model_option",
    "add_text_options",
    "draft_options",
    "load_engine",
    "read_prompt",
    "text_options",
]

NAMED = ("lookup", "grammar")  # drafts without a file

SAMPLING: dict[str, tuple[Callable[[str], Any], str]] = {
    "temperature": (float, "0 always takes the likeliest token"),
    "top_k": (int, "keep the k likeliest tokens; 0 keeps all"),
    "top_p": (float, "keep the fewest tokens with this probability together"),
    "min_p": (float, "keep tokens this likely, relative to the likeliest"),
    "typical_p": (float, "keep the most typical tokens with this probability together"),
    "top_a": (float, "keep tokens with this share of the squared highest probability"),
    "eta_cutoff": (float, "keep tokens this probable, or less where the entropy is high"),
    "epsilon_cutoff": (float, "keep tokens this probable"),
    "top_n_sigma": (float, "keep logits this many standard deviations below the highest; 0 keeps all"),
    "repetition_penalty": (float, "1 is none"),
    "frequency_penalty": (float, "taken off for each time that a token came"),
    "presence_penalty": (float, "taken off once"),
    "repetition_penalty_window": (int, "tokens that these look back"),
    "dry_multiplier": (float, "against repetitions of several tokens; 0 is none"),
    "dry_base": (float, "how its penalty grows with a repetition"),
    "dry_allowed_length": (int, "tokens that may be repeated"),
    "xtc_probability": (float, "how often the likeliest tokens are left out"),
    "xtc_threshold": (float, "how probable these are"),
    "mirostat": (int, "1 or 2 steers the surprise; 0 is off"),
    "mirostat_tau": (float, "surprise to steer to, in bits"),
    "mirostat_eta": (float, "how quickly"),
    "dynatemp_range": (float, "the temperature follows the entropy this far up and down"),
    "dynatemp_exponent": (float, "how it does"),
    "seed": (int, "the same seed gives the same text"),
}


def add_model_option(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Adds the options that name a model."""
    parser.add_argument(
        "-m", "--model", metavar="FILE",
        help="GGUF file, or hf:OWNER/REPO/FILE of the Hugging Face Hub; default: the model that ships with oxillama",
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
    group = parser.add_argument_group("output")
    group.add_argument("-n", "--max-tokens", type=int, metavar="N", help="default: up to the context's end")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end there; may be repeated")
    group.add_argument("--ignore-eos", action="store_true", help="go on when the model wants to end")
    group.add_argument("--deadline", type=float, metavar="S", help="end a text that is not done after S seconds")
    group = parser.add_argument_group("sampling")
    group.description = "Defaults are those that the model's file gives (`oxillama info`), and else the ones here."
    defaults = oxillama.SamplerConfig()
    for name, (kind, text) in SAMPLING.items():
        default = getattr(defaults, name)
        shown = "random" if default is None else default
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="X", help=f"{text}; default {shown}")
    group.add_argument(
        "--logit-bias", action="append", default=[], metavar="ID=X",
        help="add X to this token's logit, -inf bans it; may be repeated; `oxillama tokenize` tells ids",
    )  # fmt: skip
    add_constraints(parser)
    group = parser.add_argument_group("speculative decoding, which changes no text")
    group.add_argument("--draft", metavar="FILE", help="a smaller model with the same tokens; or lookup, or grammar")
    group.add_argument("--num-speculative", type=int, metavar="N", help="draft tokens at a time, at most; default 4")
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
        "offload": read_offload(args),
        "rope": pairs("--rope", args.rope) or None,
        "overrides": pairs("--override", args.override) or None,
    }


@contextlib.contextmanager
def draft_options(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Keywords of `Engine.stream` for the draft, which stays loaded until the block ends."""
    options = {name: value for name in ("draft", "num_speculative") if (value := getattr(args, name)) is not None}
    with contextlib.ExitStack() as closing:
        if options.get("draft", "lookup") not in NAMED:
            file = named_file("--draft", args.draft)
            with DeferredInterrupt():
                options["draft"] = closing.enter_context(oxillama.DraftModel(file, num_threads=args.threads))
        yield options


def text_options(args: argparse.Namespace) -> dict[str, Any]:
    """Keywords for `Engine.stream`."""
    sampling = {name: getattr(args, name) for name in SAMPLING if getattr(args, name) is not None}
    sampling |= read_constraints(args)
    if args.logit_bias:
        sampling["logit_bias"] = biases("--logit-bias", args.logit_bias)
    if args.deadline is not None:
        sampling["deadline"] = args.deadline
    return {"max_tokens": args.max_tokens, "stop": args.stop, "ignore_eos": args.ignore_eos, **sampling}


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
