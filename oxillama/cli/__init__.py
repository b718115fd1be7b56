"""Command line: the program `oxillama`."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Sequence

from oxillama._util.blas import import_numpy
from oxillama._util.signals import DeferredInterrupt
from oxillama.cli.statuses import FailedCheckError
from oxillama.errors import OxiLlamaError

__all__ = ["main"]

# Exit statuses as shells count them: 128 and the number of the signal.
INTERRUPTED = 130
BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line (default: that of the process) and returns its exit status: 2 for errors, 1 for
    those in what was to be checked."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()  # the reader of the pipe has gone
        return BROKEN_PIPE
    except (OxiLlamaError, OSError, MemoryError) as error:
        _report(error, "--debug" in arguments)
        return error.status if isinstance(error, FailedCheckError) else 2


def _run(arguments: list[str]) -> int:
    _prepare_streams()
    # An interrupt inside an import may end in a callback of the import system, which prints it and continues.
    with DeferredInterrupt():
        from oxillama.cli.arguments import parse

        try:
            args = parse(arguments)
        except SystemExit:  # with a help text that is still buffered
            if sys.stdout is not None:
                sys.stdout.flush()
            raise
    if sys.stdout is None:
        raise OSError("standard output is closed")
    if arguments[:1] != ["serve"]:  # which listens first
        import_numpy()
    status: int = args.command(args)
    sys.stdout.flush()
    return status


def _prepare_streams() -> None:
    """Text in another encoding must not end in a traceback, nor a closed standard error send errors elsewhere."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (until the process ends)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _report(error: Exception, debug: bool) -> None:
    with contextlib.suppress(OSError):
        if debug:
            traceback.print_exc()
        else:
            print(f"oxillama: error: {_message(error)}", file=sys.stderr)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _discard_output()


def _message(error: Exception) -> str:
    """One line, with flags for the names of settings."""
    if isinstance(error, MemoryError) and not isinstance(error, OxiLlamaError):
        return f"out of memory{f' ({error})' if str(error) else ''}: use a smaller model or --context-size"
    if isinstance(error, OSError) and not isinstance(error, OxiLlamaError) and error.strerror:
        place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return f"{place}{error.strerror}"
    text = " ".join(str(error).split())
    try:
        from oxillama.cli.arguments import with_flags

        return with_flags(text)
    except (OxiLlamaError, ImportError):  # the error is of what this imports: OXILLAMA_TIER is read in it
        return text


def _discard_output() -> None:
    """Drops buffered output, which would fail again when the process ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
