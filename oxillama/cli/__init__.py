"""The command `oxillama`."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence

from oxillama.errors import OxiLlamaError

__all__ = ["main"]

# Exit statuses as shells count them: 128 and the number of the signal.
INTERRUPTED = 130
BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line (default: that of the process) and returns its exit status; errors are 2."""
    from oxillama.cli.arguments import make_parser

    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # text in another encoding must not end in a traceback
    args = make_parser().parse_args(argv)
    try:
        status: int = args.command(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has gone. What is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (OxiLlamaError, OSError) as error:
        if args.debug:
            traceback.print_exc()
        else:
            print(f"oxillama: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
