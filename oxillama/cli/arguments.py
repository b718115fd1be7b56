"""The command line's options."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import oxillama
from oxillama.cli.constraints import CONSTRAINT_FLAGS, add_constraints, read_constraints
from oxillama.cli.values import OFFLOAD_FLAGS, add_offload, pairs, read_offload
from oxillama.interrupt import DeferredInterrupt

if TYPE_CHECKING:
    from oxillama.engine import Engine

__all__ = ["load_engine", "make_parser", "model_file", "parse", "read_prompt", "text_options", "with_flags"]

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

# Settings whose flags have other names.
FLAGS = {
    "num_threads": "--threads",
    "prefill_chunk_size": "--chunk-size",
    "overrides": "--override",
    "rope": "--rope",
    "tensor_types": "--tensor-type",
}
FLAGS |= {
    name: f"--{name.replace('_', '-')}"
    for name in ("context_size", "allow_requantize", "kv_type", "max_tokens", "stop", "pooling")
}
FLAGS |= {name: f"--{name.replace('_', '-')}" for name in SAMPLING} | CONSTRAINT_FLAGS | OFFLOAD_FLAGS


class Parser(argparse.ArgumentParser):
    """One that reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"oxillama: error: {message}; see `{self.prog} --help`\n")


def make_parser() -> argparse.ArgumentParser:
    """Each command sets `command`, a function (arguments) -> exit status."""
    parser = Parser("oxillama", description="Run language models in GGUF files on the CPU.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"oxillama {oxillama.__version__}")
    parser.add_argument("--debug", action="store_true", help="show a traceback for errors")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)

    def add(name: str, module: str, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        # Given before or after the command; the default is the parser's above.
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        command.set_defaults(command=_lazy(module, name.replace("-", "_")), parser=command)
        return command

    run = add("run", "text", "Continue a prompt.")
    run.add_argument("prompt", nargs="?", metavar="PROMPT", help="text; - or nothing reads standard input")
    run.add_argument("--echo", action="store_true", help="print the prompt too")
    _add_text_options(run)
    chat = add("chat", "chat", "Talk to a model. /reset starts anew, /exit or Ctrl-D leaves, Ctrl-C stops an answer.")
    chat.add_argument("--system", metavar="TEXT", help="system message")
    _add_text_options(chat)
    info = add("info", "tools", "Tell what is in a GGUF file.")
    info.add_argument("file", nargs="?", metavar="FILE", help="default: the model that ships with oxillama")
    info.add_argument("-c", "--context-size", type=int, metavar="N", help="for the memory estimate")
    add_offload(info)
    _add_tool_commands(add)
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """What a command line says. Errors, which name the command's own help, end the process."""
    args, unknown = make_parser().parse_known_args(arguments)
    if unknown:
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return args


def _add_tool_commands(add: Callable[[str, str, str], argparse.ArgumentParser]) -> None:
    tokenize = add("tokenize", "tools", "Print the token ids of a text as JSON.")
    tokenize.add_argument("text", nargs="?", metavar="TEXT", help="- or nothing reads standard input")
    tokenize.add_argument("-m", "--model", metavar="FILE", help="default: the model that ships with oxillama")
    tokenize.add_argument("--no-special", action="store_true", help="without the tokens that begin and end a text")
    tokenize.add_argument("--parse-special", action="store_true", help='read text like "<|im_end|>" as that token')
    tokenize.add_argument("--pieces", action="store_true", help="a line for each token: id and text")
    embed = add("embed", "tools", "Print the embedding of a text as a JSON list, or of several as a list of lists.")
    embed.add_argument("text", nargs="*", metavar="TEXT", help="- or nothing reads standard input")
    embed.add_argument("--pooling", help="mean, last, max, cls, none or rank (default: what the file says, or mean)")
    embed.add_argument("--no-normalize", action="store_true", help="don't divide by the length")
    _add_engine_options(embed)
    bench = add("bench", "bench", "Measure prefill and decode in tokens per second; medians.")
    bench.add_argument("-p", "--prompt-tokens", type=int, metavar="N", help="default 512, if the context holds them")
    bench.add_argument("-n", "--gen-tokens", type=int, metavar="N", help="default 128, if the context holds them")
    bench.add_argument("-r", "--repetitions", type=int, default=5, metavar="N", help="default 5")
    bench.add_argument("--json", action="store_true", help="print JSON")
    _add_engine_options(bench)
    _add_quantize(add)
    _add_merge_lora(add)
    snapshot = add("snapshot", "snapshot", "Tell what a snapshot is of.")
    snapshot.add_argument("action", choices=["info"], help="what to do with it")
    snapshot.add_argument("file", metavar="FILE")
    add("show-config", "tools", "Print what this build can do and what is in use.")


def _add_quantize(add: Callable[[str, str, str], argparse.ArgumentParser]) -> None:
    quantize = add("quantize", "quantize", "Write a GGUF file again with its matrices in a smaller format.")
    quantize.add_argument("source", metavar="IN", help="GGUF file; of a split model, the first")
    quantize.add_argument("destination", metavar="OUT", help="file to write; what is there is replaced at the end")
    quantize.add_argument("type", metavar="TYPE", help="a format (Q8_0) or a mix (Q4_K_M); a wrong one lists them all")
    quantize.add_argument("-t", "--threads", type=int, metavar="N", help="default: one per core")
    quantize.add_argument(
        "--tensor-type", action="append", default=[], metavar="PATTERN=TYPE",
        help="format for tensors whose names this regular expression is found in; may be repeated, the first counts",
    )  # fmt: skip
    quantize.add_argument("--pure", action="store_true", help="the same format for all matrices")
    quantize.add_argument("--keep-output", action="store_true", help="leave the output matrix as it is")
    quantize.add_argument("--allow-requantize", action="store_true", help="also convert what is quantised already")
    quantize.add_argument("--dry-run", action="store_true", help="only print what each tensor would become")
    quantize.add_argument("--progress", action="store_true", help="show a bar even if stderr is no terminal")


def _add_merge_lora(add: Callable[[str, str, str], argparse.ArgumentParser]) -> None:
    merge = add("merge-lora", "merge", "Write a GGUF file again with a LoRA adapter in its weights.")
    merge.add_argument("base", metavar="BASE", help="GGUF file of the model; of a split model, the first")
    merge.add_argument("adapter", metavar="ADAPTER", help="GGUF file, or the folder of a PEFT adapter")
    merge.add_argument("destination", metavar="OUT", help="file to write; what is there is replaced at the end")
    merge.add_argument("--scale", type=float, default=1.0, metavar="X", help="of the adapter; default 1")
    merge.add_argument(
        "--also", action="append", default=[], nargs=2, metavar=("ADAPTER", "X"), help="another one, with its scale"
    )
    merge.add_argument("--type", metavar="TYPE", help="format of the changed tensors; default: that which they have")
    merge.add_argument("-t", "--threads", type=int, metavar="N", help="default: one per core")


def _lazy(module: str, function: str) -> Callable[[argparse.Namespace], int]:
    def command(args: argparse.Namespace) -> int:
        with DeferredInterrupt():
            run = getattr(importlib.import_module(f"oxillama.cli.{module}"), function)
        status: int = run(args)
        return status

    return command


def _add_engine_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument("-m", "--model", metavar="FILE", help="GGUF file; default: the model that ships with oxillama")
    group.add_argument("-c", "--context-size", type=int, metavar="N", help="tokens of prompt and output together")
    group.add_argument("-t", "--threads", type=int, metavar="N", help="default: one per core")
    group.add_argument("--kv-type", default="f16", metavar="TYPE", help="f16 (default), f32 or q8_0")
    group.add_argument("--chunk-size", type=int, default=512, metavar="N", help="tokens of a step; default 512")
    group.add_argument("--no-repack", action="store_true", help="leave the weights as they are in the file")
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


def _add_text_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("-n", "--max-tokens", type=int, metavar="N", help="default: up to the context's end")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end there; may be repeated")
    group.add_argument("--ignore-eos", action="store_true", help="go on when the model wants to end")
    group = parser.add_argument_group("sampling")
    defaults = oxillama.SamplerConfig()
    for name, (kind, text) in SAMPLING.items():
        default = getattr(defaults, name)
        shown = "random" if default is None else default
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="X", help=f"{text}; default {shown}")
    add_constraints(parser)
    _add_engine_options(parser)


def load_engine(args: argparse.Namespace) -> Engine:
    """The engine that a command line asks for. Ctrl-C counts when it is loaded: loading imports modules."""
    options, adapters = engine_options(args), adapters_of(args)
    with DeferredInterrupt():
        engine = oxillama.load(**options)
        for path, scale in adapters:
            engine.apply_lora(path, scale)
        return engine


def adapters_of(args: argparse.Namespace) -> list[tuple[str, float]]:
    """Files of adapters with their scales. ConfigError for a scale that is no number."""
    return [(named_file("--lora", path), 1.0) for path in args.lora] + scaled("--lora-scaled", args.lora_scaled)


def scaled(flag: str, given: list[list[str]]) -> list[tuple[str, float]]:
    """Pairs of a file and a number. ConfigError, with the flag, for other things."""
    found = []
    for path, scale in given:
        try:
            found.append((named_file(flag, path), float(scale)))
        except ValueError:
            raise oxillama.ConfigError(f"{flag} must have a number after the file, not {scale!r}") from None
    return found


def model_file(name: str, given: str | None) -> str | None:
    """A file as given, if it is. ConfigError for an empty name, as an unset variable of a shell leaves it."""
    return None if given is None else named_file(name, given, ", or leave it out for the one that ships")


def named_file(name: str, given: str, otherwise: str = "") -> str:
    """A file as given. ConfigError for an empty name; `otherwise` is said after the remedy."""
    if not given:
        raise oxillama.ConfigError(f"{name} is empty: give a GGUF file{otherwise}")
    return given


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """Keywords for `oxillama.load`."""
    return {
        "model_path": model_file("--model", args.model),
        "context_size": args.context_size,
        "num_threads": args.threads,
        "kv_type": args.kv_type,
        "prefill_chunk_size": args.chunk_size,
        "repack": not args.no_repack,
        "offload": read_offload(args),
        "rope": pairs("--rope", args.rope) or None,
        "overrides": pairs("--override", args.override) or None,
    }


def text_options(args: argparse.Namespace) -> dict[str, Any]:
    """Keywords for `Engine.stream`."""
    sampling = {name: getattr(args, name) for name in SAMPLING if getattr(args, name) is not None}
    sampling |= read_constraints(args)
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
    if buffer is None:  # replaced by something that holds text
        return sys.stdin.read()
    try:
        return str(buffer.read(), "utf-8")
    except UnicodeDecodeError as error:
        raise oxillama.ConfigError(f"standard input is not UTF-8 at byte {error.start}: text is needed") from None


def with_flags(message: str) -> str:
    """A message of the library, with the command line's flags for its settings.

    Words that may also mean something else count as settings only at the beginning.
    """
    message = re.sub(r"overrides=\{['\"]([^'\"]+)['\"]: ([^{}]*)\}", r"--override \1=\2", message)
    message = re.sub(r"(?<![\w.])rope\.([a-z_]+)", r"--rope \1", message)
    message = re.sub(r"(?<![\w.])offload\.[a-z]+", lambda m: FLAGS.get(m[0], m[0]), message)
    single = re.match(r"[a-z]+(?=\W)", message)
    if single and single[0] in FLAGS:
        message = FLAGS[single[0]] + message[single.end() :]
    return re.sub(r"(?<![\w./'\"-])[a-z]+_[a-z_]+(?![\w./'\"-])", lambda m: FLAGS.get(m[0], m[0]), message)
