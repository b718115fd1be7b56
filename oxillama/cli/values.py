"""Option values other than numbers and words."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from oxillama._util.sizes import read_size
from oxillama.config import OffloadPolicy
from oxillama.errors import ConfigError

__all__ = ["OFFLOAD_FLAGS", "add_offload", "biases", "offload_line", "pairs", "read_offload", "size_of", "with_sizes"]

OFFLOAD_FLAGS = {
    "offload": "--offload",
    "offload.budget": "--offload",
    "offload.automatic": "--offload auto",
    "offload.pinned": "--pin",
    "offload.direct": "--offload-direct",
}


def pairs(flag: str, entries: list[str]) -> dict[str, Any]:
    """KEY=VALUE, where the value is JSON or else text. ConfigError, with the flag, for anything else."""
    found = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals or not key:
            raise ConfigError(f"{flag} must be KEY=VALUE, not {entry!r}")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


def biases(flag: str, entries: list[str]) -> dict[int, float]:
    """ID=X as a mapping. ConfigError, with the flag, for anything else, and for an ID that comes twice."""
    found: dict[int, float] = {}
    for entry in entries:
        token, _, bias = entry.partition("=")
        if not token.isdecimal() or not token.isascii():
            raise ConfigError(f"{flag} must be ID=X, a token's id and a number, not {entry!r}")
        try:
            value = float(bias)
        except ValueError:
            raise ConfigError(f"{flag} must be ID=X, a token's id and a number, not {entry!r}") from None
        if int(token) in found:
            raise ConfigError(f"{flag} was given twice for token {token}, with {found[int(token)]:g} and {value:g}")
        found[int(token)] = value
    return found


def add_offload(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Options that make an `OffloadPolicy`."""
    parser.add_argument(
        "--offload", metavar="SIZE", help="memory for weights, as 800M or 4G; or auto: as much as the system can spare"
    )
    parser.add_argument(
        "--pin", action="append", default=[], metavar="PATTERN", help="matrices that stay in memory; may be repeated"
    )
    parser.add_argument("--offload-direct", action="store_true", help="read weights past the system's page cache")


def read_offload(args: argparse.Namespace) -> OffloadPolicy | None:
    """The policy that the options make, None without any. ConfigError for a size that is none."""
    if args.offload is None and not args.pin and not args.offload_direct:
        return None
    automatic = args.offload == "auto"
    budget = None if args.offload is None or automatic else size_of("--offload", args.offload, ", or auto")
    return OffloadPolicy(budget=budget, pinned=args.pin, automatic=automatic, direct=args.offload_direct)


def size_of(flag: str, text: str, otherwise: str = "") -> int:
    """Bytes of 800M or 4G, which are powers of 1024. ConfigError, with the flag, for anything else."""
    n_bytes = read_size(text)
    if n_bytes is None:
        raise ConfigError(f"{flag} must be a number of bytes, as 800M or 4G{otherwise}, not {text!r}")
    return n_bytes


def with_sizes(place: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `EngineConfig` as a file has them: sizes may be texts, as of the flags, and `offload` may be "auto".

    place: what the names are told after. ConfigError, with the name, for a text that is no size.
    """
    found = dict(fields)
    if isinstance(found.get("kv_budget"), str):
        found["kv_budget"] = size_of(f"{place}.kv_budget", found["kv_budget"])
    offload = found.get("offload")
    if isinstance(offload, str):
        found["offload"] = (
            {"automatic": True} if offload == "auto" else size_of(f"{place}.offload", offload, ", or auto")
        )
    elif isinstance(offload, Mapping):
        sizes = {k: size_of(f"{place}.offload.{k}", v) for k, v in offload.items()
                 if k in ("budget", "reserve") and isinstance(v, str)}  # fmt: skip
        found["offload"] = {**offload, **sizes}
    return found


def offload_line(counts: Mapping[str, float]) -> str:
    """A line with the counters of a pager."""
    asked = counts["hits"] + counts["faults"]
    hits = f"{counts['hits'] / asked:.0%} of {asked} pages in memory" if asked else "no pages asked for"
    waited = f"waited {counts['stalls']} times, {counts['stall_seconds']:.2f} s"
    return (
        f"[weights in {counts['budget'] / (1 << 20):,.2f} MiB: {hits}; {counts['bytes'] / 1e9:.2f} GB read; {waited}]"
    )
