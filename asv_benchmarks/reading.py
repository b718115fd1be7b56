"""Decoding held against a plain read of memory: python asv_benchmarks/reading.py FOLDER

A token of one sequence reads all weights once. Here the shape of Llama 3.2 1B, made in FOLDER, is decoded in each type,
between two plain reads by the same number of threads: the share is the bytes of the file that decoding read a second,
of the mean of both reads. Medians of --rounds.
"""

import argparse
import statistics
import sys
from pathlib import Path

from benchmarks.shapes import make_model
from compare import PlainRead, start
from sides import Work

SHAPE = "llama3.2-1b"
TYPES = ("Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_XS", "Q8_0", "F16", "BF16")


def shares(path: Path, threads: int, a: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Of each round the share, and the plain read that it is of."""
    process, _ = start("oxillama", sys.executable, str(path), Work(prompt=0, decode=a.decode, threads=threads))
    plain = PlainRead(threads)
    found, reads = [], []
    for _ in range(a.rounds):
        before = plain.speed()
        tokens = process.ask()["decode"]
        reads.append((before + plain.speed()) / 2)
        found.append(tokens * path.stat().st_size / reads[-1])
    process.close()
    return found, reads


def main() -> None:
    parser = argparse.ArgumentParser(description="decoding held against a plain read of memory")
    parser.add_argument("folder", type=Path, help="keeps the models")
    parser.add_argument("--types", nargs="+", default=TYPES)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    for name, value in (("rounds", 7), ("decode", 16)):
        parser.add_argument(f"--{name}", type=int, default=value)
    a = parser.parse_args()
    if a.rounds < 2:
        parser.error("--rounds must be 2 at least, for quartiles")
    for type in a.types:
        path = make_model(a.folder, SHAPE, type)
        for threads in a.threads:
            found, reads = shares(path, threads, a)
            quartiles = statistics.quantiles(found, n=4)
            share, gigabytes = statistics.median(found), statistics.median(reads) / 1e9
            print(f"{type}, {threads} threads: {share:.2f} of {gigabytes:.1f} GB/s, ", end="")
            print(f"quartiles {quartiles[0]:.2f} to {quartiles[2]:.2f}", flush=True)


if __name__ == "__main__":
    main()
