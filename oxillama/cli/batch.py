"""Batch command, `oxillama batch`."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import oxillama
from oxillama.cli.files import output_file
from oxillama.cli.flags import draft_settings, flag_of, given
from oxillama.cli.options import draft_options, load_engine, text_options
from oxillama.data.request_job import answer_file, is_request_file
from oxillama.data.table_job import Report, check_paths, journal_of, map_file

if TYPE_CHECKING:
    from oxillama.core.results import CancelToken
    from oxillama.engine import Engine

__all__ = ["batch"]

INTERRUPTED = 130
COLUMNS = ("prompt_column", "template", "messages_column")


def batch(args: argparse.Namespace) -> int:
    """Answers requests, or the rows of a table. 1 if some failed, 130 after Ctrl-C."""
    source, output = os.path.expanduser(args.source), output_file("OUT", args.destination)
    if args.limit is not None and args.limit < 1:
        raise oxillama.ConfigError(f"--limit must be at least 1, not {args.limit}")
    tables = any(getattr(args, name) is not None for name in COLUMNS)
    job: dict[str, Any] = {
        "limit": args.limit,
        "again": args.retry_failed,
        "progress": args.progress or (sys.stderr is not None and sys.stderr.isatty()),
    }
    options = text_options(args)  # before anything is loaded, since it raises for bad options
    if tables:
        for flag in ("served_model_name", "tool_format"):
            if getattr(args, flag):
                raise oxillama.ConfigError(f"{flag_of(flag)} is for requests, not for the rows of a table")
    else:
        _check_requests(args, source, options)
    check_paths(source, output)
    began = time.perf_counter()
    with load_engine(args) as engine, draft_options(args) as drafting, _named_by_flags():
        if tables:
            report = _map(args, engine, source, output, {**options, **drafting}, job)
        else:
            name = "oxillama-default" if args.model is None else os.path.basename(args.model).removesuffix(".gguf")
            own = {"name": name, "aliases": tuple(args.served_model_name), "tool_format": args.tool_format}
            report = answer_file(engine, source, output, deadline=args.deadline, **own, **job)
    return _tell(report, output, time.perf_counter() - began)


def _check_requests(args: argparse.Namespace, source: str, options: dict[str, Any]) -> None:
    """Raises ConfigError for a file without requests, and for options that each request has for itself."""
    if not is_request_file(source):
        raise oxillama.ConfigError(
            f"{source} has no requests (custom_id, method, url, body) in its lines: give --prompt-column, --template "
            "or --messages-column for a table"
        )
    found = [name for name in (*options, *given(args, draft_settings())) if name != "deadline"]
    found += [name for name in ("draft", "output_column", "details") if getattr(args, name)]
    if found:
        flag = flag_of(found[0])
        raise oxillama.ConfigError(f"{flag} is for rows of a table: requests say what they want in their bodies")


def _map(
    args: argparse.Namespace, engine: Engine, source: str, output: str, options: dict[str, Any], job: dict[str, Any]
) -> Report:
    from oxillama.data import Generate

    mapper = Generate(
        engine, prompt=args.prompt_column, template=args.template, messages=args.messages_column,
        output=args.output_column or "answer", details=args.details, on_error="column", **options,
    )  # fmt: skip
    with _cancelled_by_interrupts() as cancel:
        return map_file(mapper, source, output, cancel=cancel, **job)


# Flags by what the library calls their values.
FLAGS = {"request_timeout": "--deadline", "prompt": "--prompt-column", "messages": "--messages-column",
         "output": "--output-column"}  # fmt: skip


@contextlib.contextmanager
def _named_by_flags() -> Iterator[None]:
    """Errors inside name the flags whose values are wrong."""
    try:
        yield
    except oxillama.ConfigError as error:
        name, space, rest = str(error).partition(" ")
        if name not in FLAGS or type(error) is not oxillama.ConfigError:
            raise
        raise oxillama.ConfigError(f"{FLAGS[name]}{space}{rest}") from error


@contextlib.contextmanager
def _cancelled_by_interrupts() -> Iterator[CancelToken]:
    """A token that the first Ctrl-C cancels; a second one interrupts as ever. Where it is ignored, it stays ignored."""
    token = oxillama.CancelToken()
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:  # as shells start commands in the background
        yield token
        return

    def cancel(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, before)
        token.cancel()

    try:
        signal.signal(signal.SIGINT, cancel)
    except ValueError:  # in another thread than the main one
        yield token
        return
    try:
        yield token
    finally:
        signal.signal(signal.SIGINT, before)


def _tell(report: Report, output: str, seconds: float) -> int:
    """Says on standard error what was done, and gives the status."""
    rate = f", {report.n_tokens / max(seconds, 1e-9):.0f} tokens/s" if report.n_tokens else ""
    before = f" and {report.n_before} before" if report.n_before else ""
    lines = [f"{report.n_done} of {report.n_rows} rows in {seconds:.1f} s{before}{rate}"]
    if not report.whole:
        lines.append(f"what is finished is in {journal_of(output)}: the same command goes on with the rest")
    for kind, n in report.errors.most_common():
        lines.append(f"{n} failed with {kind}, such as {report.examples[kind]:.300}")
    if report.whole and report.errors:
        lines.append(f"{journal_of(output)} stays for --retry-failed, which computes those anew")
    if sys.stderr is not None:
        print("\n".join(lines), file=sys.stderr)
    return INTERRUPTED if not report.whole else 1 if report.errors else 0
