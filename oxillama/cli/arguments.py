"""Parser of the command line."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import oxillama
from oxillama._util.checks import nearest
from oxillama._util.signals import DeferredInterrupt
from oxillama.cli.batch_options import add_batch_options
from oxillama.cli.constraints import CONSTRAINT_FLAGS
from oxillama.cli.denoise import add_diffuse_options, diffuse_settings
from oxillama.cli.flags import draft_settings, flag_of, sampling_settings, text_settings
from oxillama.cli.habits import model_in_place_of_text, unknown_command
from oxillama.cli.options import add_engine_options, add_model_option, add_text_options
from oxillama.cli.serve import add_server_options
from oxillama.cli.values import OFFLOAD_FLAGS, add_offload
from oxillama.cli.wording import flags_of, with_commands

__all__ = ["make_parser", "parse", "with_flags"]

# Settings whose flags have other names.
FLAGS = {
    "num_threads": "--threads",
    "prefill_chunk_size": "--chunk-size",
    "overrides": "--override",
    "rope": "--rope",
    "packed": "--packed",
    "tensor_types": "--tensor-type",
}
FLAGS |= {
    name: flag_of(name)
    for name in (
        "context_size",
        "allow_requantize",
        "kv_type",
        "kv_budget",
        "logit_bias",
        "pooling",
        "dimensions",
        "dtype",
        "top_n",
        "template",
        "draft",
        "tool_format",
    )
}
FLAGS |= {one.name: flag_of(one.name) for one in sampling_settings()} | CONSTRAINT_FLAGS | OFFLOAD_FLAGS


def flags() -> dict[str, str]:
    """Flags by the names of settings."""
    found = [*text_settings(), *draft_settings(), *diffuse_settings()]
    return FLAGS | {one.name: flag_of(one.name) for one in found}


ONE_TEXT = ("run", "diffuse", "tokenize")

PULL = """\
recipes:
  oxillama pull hf:bartowski/Llama-3.2-1B-Instruct-GGUF          Q4_K_M, or what is nearest to it
  oxillama pull hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0     another quantisation
  oxillama pull hf:OWNER/REPO/FILE.gguf                          one file: a projector, a draft
  oxillama pull https://huggingface.co/OWNER/REPO/blob/main/FILE.gguf
  oxillama chat -m bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M   talk to what was pulled

A pull that was cut goes on where it ended. The files lie in the Hub's cache (HF_HOME), which other programs share; the
store (OXILLAMA_MODELS) has links to them. HF_TOKEN opens gated repositories."""
SERVE = """\
recipes:
  oxillama serve -m hf:OWNER/REPO                          one model, fetched unless it is here
  oxillama serve --models-dir store --idle-unload 300      all of `oxillama list`'s store, each when it is asked for
  oxillama serve --models-dir store --ollama --allow-pull  where Ollama's clients look; they may fetch models, too
  oxillama serve --models-dir DIR --alias gpt-4o=NAME --keep-loaded NAME"""
LIST = """\
The store is OXILLAMA_MODELS, or oxillama/models in XDG_DATA_HOME or ~/.local/share. A GGUF file that is put there by
hand counts, as do the Hub's cache and Ollama's models (OLLAMA_MODELS)."""
RM = """\
Links go, and of the Hub's cache what `oxillama pull` had put there. Files of other programs stay."""


Fill = Callable[[argparse.ArgumentParser], None]


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line.

    fill: adds options that are known from modules which other commands don't import, when they are asked for.
    """

    def __init__(self, *given: Any, fill: Fill | None = None, **options: Any) -> None:
        super().__init__(*given, **options)
        self._fill = fill

    def parse_known_args(self, *given: Any, **options: Any) -> Any:
        self.fill_in()
        return super().parse_known_args(*given, **options)

    def format_help(self) -> str:
        self.fill_in()
        return super().format_help()

    def fill_in(self) -> None:
        """Adds the options that are added late, the first time."""
        fill, self._fill = self._fill, None
        if fill is not None:
            fill(self)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"oxillama: error: {message}; see `{self.prog} --help`\n")


def make_parser(*, whole: bool = False) -> argparse.ArgumentParser:
    """Each command sets `command`, a function (arguments) -> exit status. whole: every command has all its options."""
    parser = Parser("oxillama", description="Run language models in GGUF files on the CPU.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"oxillama {oxillama.__version__}")
    parser.add_argument("--debug", action="store_true", help="show a traceback for errors")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)

    def add(
        name: str, module: str, text: str, fill: Fill | None = None, function: str = "", recipes: str = ""
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name, help=text, description=text, allow_abbrev=False, fill=fill, epilog=recipes or None,
            formatter_class=argparse.RawDescriptionHelpFormatter if recipes else argparse.HelpFormatter,
        )  # fmt: skip
        # Given before or after the command; the default is the parser's above.
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        command.set_defaults(command=_lazy(module, function or name.replace("-", "_")), parser=command)
        if whole:
            command.fill_in()
        return command

    add("run", "text", "Continue a prompt.", _add_run_options)
    add("diffuse", "denoise", "Continue a prompt by denoising, with a diffusion model (LLaDA, Dream, RND1).",
        add_diffuse_options)  # fmt: skip
    add("chat", "chat", "Talk to a model. /help lists what can be typed; Ctrl-C stops an answer, Ctrl-D leaves.",
        _add_chat_options)  # fmt: skip
    for name in ("info", "show"):
        info = add(name, "info", "Tell what is in a GGUF file." if name == "info" else "The same as info.",
                   function="info")  # fmt: skip
        info.add_argument("file", nargs="?", metavar="FILE", help="the same as -m FILE")
        add_model_option(info)
        info.add_argument("-c", "--context-size", type=int, metavar="N", help="for the memory estimate")
        info.add_argument("--json", action="store_true", help="print JSON")
        add_offload(info)
    _add_model_commands(add)
    _add_tool_commands(add)
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The parsed command line. Errors, which name the command's own help, end the process.

    Without a command it ends with the help and status 1, as git does.
    """
    parser = make_parser()
    check_command(parser, arguments)
    args, unknown = parser.parse_known_args(arguments)
    if args.command is None:
        if unknown:
            parser.error(unrecognized(parser, unknown))
        parser.print_help()
        parser.exit(1)
    check_model_is_no_text(args, unknown)
    if unknown:
        args.parser.error(unrecognized(args.parser, unknown))
    return args


def check_command(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Ends the process for a command that there isn't, with what was meant."""
    known = next(one.choices for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    given = next((one for one in arguments if not one.startswith("-")), None)
    if given is not None and given not in known:
        parser.error(unknown_command(given, known))


def unrecognized(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> str:
    """Message that says which of these arguments are wrong, and what was most likely meant."""
    message = f"unrecognized arguments: {' '.join(unknown)}"
    flags = [flag for flag in unknown if flag.startswith("-")]
    if not flags and parser.prog.split()[-1] in ONE_TEXT:
        return f"{message}; a text of several words is one argument, in quotes"
    known = {flag[2:].replace("-", "_"): flag for flag in parser._option_string_actions if flag.startswith("--")}
    for flag in flags:
        near = nearest(flag.lstrip("-").partition("=")[0].replace("-", "_"), known)
        if near and flag.startswith("--"):
            return f"{message}; did you mean {known[near]}?"
    return message


def check_model_is_no_text(args: argparse.Namespace, unknown: Sequence[str]) -> None:
    """Ends the process if a model's file is given as the text, with the command line that was meant."""
    command = args.parser.prog.split()[-1]
    if not hasattr(args, "model"):
        return
    given = [getattr(args, name, None) for name in ("prompt", "text", "query")]
    texts = [*(text[0] if isinstance(text, list) and text else text for text in given), *unknown]
    message = model_in_place_of_text(command, [text for text in texts if isinstance(text, str)], args.model)
    if message is not None:
        args.parser.error(message)


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="text; - or nothing reads standard input")
    parser.add_argument("--echo", action="store_true", help="print the prompt too")
    add_text_options(parser)


def _add_chat_options(chat: argparse.ArgumentParser) -> None:
    chat.add_argument("--system", metavar="TEXT", help="system message")
    chat.add_argument("--chat-template", metavar="FILE", help="a Jinja template in place of the model's own")
    chat.add_argument(
        "--template-kwarg",
        action="append",
        default=[],
        metavar="K=V",
        help="a variable of the template, V as JSON or text",
    )
    thinks = chat.add_mutually_exclusive_group()
    thinks.add_argument("--think", action="store_true", default=None, help="let the model think before it answers")
    thinks.add_argument("--no-think", action="store_false", dest="think", help="let it answer at once")
    chat.add_argument("--tools", metavar="FILE", help="JSON list of functions it may call; you type what they return")
    formats = "hermes, qwen, mistral, mistral-args, llama3, generic, text; none refuses tools that it doesn't show"
    chat.add_argument(
        "--tool-format", metavar="NAME", help=f"how it writes calls, if its template doesn't tell: {formats}"
    )
    add_text_options(chat)


def _add_model_commands(add: Callable[..., argparse.ArgumentParser]) -> None:
    pull = add("pull", "models", "Fetch a model of the Hugging Face Hub by its name.", None, "command_pull", PULL)
    pull.add_argument("name", nargs="+", metavar="NAME", help="hf:OWNER/REPO[:QUANT], or an address of the Hub")
    pull.add_argument("--revision", metavar="REV", help="branch, tag or commit; default main")
    pull.add_argument("--json", action="store_true", help="print a line of JSON for each")
    listed = add("list", "models", "List the models that are here, by the headers of their files.", None,
                 "command_list", LIST)  # fmt: skip
    listed.add_argument("name", nargs="?", metavar="TEXT", help="only those with this in a name")
    listed.add_argument("--json", action="store_true", help="print JSON")
    rm = add("rm", "models", "Remove models from the store.", None, "command_rm", RM)
    rm.add_argument("name", nargs="+", metavar="NAME", help="as `oxillama list` shows it")
    rm.add_argument("-y", "--yes", action="store_true", help="delete files that were put into the store by hand, too")
    ps = add("ps", "running", "List the models of a running server, and which are in memory.")
    ps.add_argument("--url", metavar="URL", help="the server's address; default port 8000 of this machine, or 11434")
    ps.add_argument("--api-key-file", metavar="FILE", help="with its key; or give OXILLAMA_API_KEY")
    ps.add_argument("--json", action="store_true", help="print JSON")


def _add_tool_commands(add: Callable[..., argparse.ArgumentParser]) -> None:
    tokenize = add("tokenize", "tools", "Print the token ids of a text as JSON.")
    tokenize.add_argument("text", nargs="?", metavar="TEXT", help="- or nothing reads standard input")
    add_model_option(tokenize)
    tokenize.add_argument("--no-special", action="store_true", help="without the tokens that begin and end a text")
    tokenize.add_argument("--parse-special", action="store_true", help='read text like "<|im_end|>" as that token')
    tokenize.add_argument("--pieces", action="store_true", help="a line for each token: id and text")
    embed = add("embed", "tools", "Print the embedding of a text as a JSON list, or of several as a list of lists.")
    embed.add_argument("text", nargs="*", metavar="TEXT", help="- or nothing reads standard input")
    embed.add_argument("--pooling", help="mean, last, max, cls, none or rank (default: what the file says, or mean)")
    embed.add_argument("--no-normalize", action="store_true", help="don't divide by the length")
    embed.add_argument("--dimensions", type=int, metavar="N", help="keep the first N values (Matryoshka); default all")
    embed.add_argument("--dtype", default="float32", metavar="TYPE", help="float32 (default), int8 or binary")
    add_engine_options(embed)
    rerank = add(
        "rerank", "tools", "Print documents, best first, by how well they answer a query: a line of JSON for each."
    )
    rerank.add_argument("query", metavar="QUERY")
    rerank.add_argument("documents", nargs="*", metavar="TEXT", help="- or nothing reads one a line of standard input")
    rerank.add_argument("-n", "--top-n", type=int, metavar="N", help="only the N best")
    rerank.add_argument("--template", metavar="TEXT", help="with {query} and {document}, instead of the model's own")
    add_engine_options(rerank)
    bench = add("bench", "bench", "Measure prefill and decode in tokens per second; medians.")
    bench.add_argument("-p", "--prompt-tokens", type=int, metavar="N", help="default 512, if the context holds them")
    bench.add_argument("-n", "--gen-tokens", type=int, metavar="N", help="default 128, if the context holds them")
    bench.add_argument("-r", "--repetitions", type=int, default=5, metavar="N", help="default 5")
    bench.add_argument("--json", action="store_true", help="print JSON")
    add_engine_options(bench)
    _add_quantize(add)
    _add_merge_lora(add)
    _add_pack(add)
    serve = add("serve", "serve", "Serve models over HTTP: the APIs of OpenAI, Anthropic and Ollama.", None, "", SERVE)
    add_engine_options(serve)
    add_server_options(serve)
    add("batch", "batch", "Answer a file of requests, or the rows of a table; stopped, it goes on later.",
        add_batch_options)  # fmt: skip
    snapshot = add("snapshot", "snapshot", "Tell what a snapshot is of.")
    snapshot.add_argument("action", choices=["info"], help="what to do with it")
    snapshot.add_argument("file", metavar="FILE")
    add("show-config", "tools", "Print what this build can do and what is in use.")
    doctor = add("doctor", "doctor", "Check this machine and installation, and tell what to change.")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.add_argument(
        "--seconds", type=float, default=2.0, metavar="X", help="of reading memory; default 2, 0 is none"
    )
    doctor.add_argument(
        "--import", action="append", default=[], dest="imports", metavar="MODULE",
        help="import it first, as a program does that uses it beside oxillama: torch, sklearn; may be repeated",
    )  # fmt: skip


def _add_quantize(add: Callable[[str, str, str], argparse.ArgumentParser]) -> None:
    quantize = add("quantize", "quantize", "Write a GGUF file again with its matrices in a smaller format.")
    quantize.add_argument("source", metavar="IN", help="GGUF file; of a split model, the first")
    quantize.add_argument("destination", metavar="OUT", help="file to write; what is there is replaced at the end")
    quantize.add_argument("type", metavar="TYPE", help="a format (Q8_0) or a mix (Q4_K_M); a wrong one lists them all")
    quantize.add_argument("-t", "--threads", type=int, metavar="N", help="default: see `oxillama show-config`")
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
    merge.add_argument("-t", "--threads", type=int, metavar="N", help="default: see `oxillama show-config`")


def _add_pack(add: Callable[[str, str, str], argparse.ArgumentParser]) -> None:
    pack = add("pack", "pack", "Write a model's weights as the kernels want them, in a file that processes share.")
    pack.add_argument("source", metavar="MODEL", help="GGUF file; of a split model, the first")
    pack.add_argument("destination", nargs="?", metavar="OUT", help="file to write; default: in the cache")
    pack.add_argument("-t", "--threads", type=int, metavar="N", help="default: see `oxillama show-config`")
    pack.add_argument("--verify", action="store_true", help="write nothing; read the file and compare its checksums")
    cache = add("cache", "pack", "List or clear the cache of packed weights.")
    cache.add_argument("action", choices=["list", "clear"], help="clear leaves what is in use")


def _lazy(module: str, function: str) -> Callable[[argparse.Namespace], int]:
    def command(args: argparse.Namespace) -> int:
        with DeferredInterrupt():
            run = getattr(importlib.import_module(f"oxillama.cli.{module}"), function)
        status: int = run(args)
        return status

    return command


def with_flags(message: str) -> str:
    """A message of the library, with the command line's flags for its settings and commands for its methods.

    Words that may also mean something else count as settings only at the beginning.
    """
    known = flags()
    message = re.sub(r"overrides=\{['\"]([^'\"]+)['\"]: ([^{}]*)\}", r"--override \1=\2", message)
    message = re.sub(r"(?<![\w.])rope\.([a-z_]+)", r"--rope \1", message)
    message = re.sub(r"(?<![\w.])offload\.[a-z]+", lambda m: known.get(m[0], m[0]), message)
    single = re.match(r"[a-z]+(?=[^\w=])", message)
    if single and single[0] in known:
        message = known[single[0]] + message[single.end() :]
    message = with_commands(message, known, flags_of(make_parser(whole=True)))
    return re.sub(r"(?<![\w./'\"-])[a-z]+_[a-z_]+(?![\w./'\"-])", lambda m: known.get(m[0], m[0]), message)
