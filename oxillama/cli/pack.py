"""Commands of packed weights, `oxillama pack` and `oxillama cache`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from oxillama._util.checks import check_int
from oxillama._util.signals import DeferredInterrupt
from oxillama.cli.files import named_model, output_file
from oxillama.cli.progress import LoadingLine
from oxillama.config import MAX_THREADS
from oxillama.gguf.values import printable
from oxillama.kernels._cores import default_num_threads
from oxillama.models.packed import Cache, pack_model, verify_model

__all__ = ["cache", "pack"]


def pack(args: argparse.Namespace) -> int:
    """Writes a model's packed weights, or with --verify compares their checksums; the path goes to stdout."""
    destination = None if args.destination is None else Path(output_file("OUT", args.destination))
    model = named_model("MODEL", args.source)
    threads = default_num_threads() if args.threads is None else check_int("num_threads", args.threads, 1, MAX_THREADS)
    with DeferredInterrupt() as interrupt, LoadingLine(interrupt) as line:
        act = verify_model if args.verify else pack_model
        path = act(model, destination, threads, line.update)
    print(printable(str(path)))
    return 0


def cache(args: argparse.Namespace) -> int:
    """Lists the packed weights in the cache, or removes those not in use."""
    own = Cache.default()
    if args.action == "clear":
        freed, left = own.clear()
        print(f"{mebibytes(freed)} freed in {printable(str(own.folder))}")
        for path in left:
            print(f"{path.name} is in use, and stays", file=sys.stderr)
        return 0
    files = own.files()
    for file in files:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(file.used))
        busy = "in use" if file.in_use else ""
        print(f"{file.path.stem[:12]}  {mebibytes(file.n_bytes):>13}  {used}  {busy:<6}  {printable(file.model)}")
    total = sum(file.n_bytes for file in files)
    print(f"{mebibytes(total)} of {mebibytes(own.limit)} in {printable(str(own.folder))}")
    return 0


def mebibytes(n: int) -> str:
    return f"{n / 2**20:,.1f} MiB"
