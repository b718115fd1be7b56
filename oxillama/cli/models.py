"""Model commands: `oxillama pull`, `list`, `rm` and `ps`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from oxillama.cli.files import import_hub, note
from oxillama.cli.verdict import verdict_of
from oxillama.errors import ConfigError, ModelNotFoundError, OxiLlamaError
from oxillama.gguf import open as open_gguf
from oxillama.gguf.values import printable
from oxillama.store.entries import Entry
from oxillama.store.facts import header_facts
from oxillama.store.library import hub_name_of
from oxillama.store.names import HUB, HubName, is_path, read_hub_name
from oxillama.store.places import shown_bytes
from oxillama.store.progress import DownloadBar
from oxillama.store.pull import Pulled, pull
from oxillama.store.removal import check_removable, remove
from oxillama.store.store import Store, nearest_names

__all__ = ["command_list", "command_pull", "command_rm", "names_of_hub"]

UNITS = ((86400 * 365, "year"), (86400 * 30, "month"), (86400, "day"), (3600, "hour"), (60, "minute"))
WHY = 60  # characters of a reason in a table


# ---- pull


def command_pull(args: argparse.Namespace) -> int:
    """Fetches models, and prints their names, a line each; what is to be known of them goes to standard error."""
    names = [name_to_pull(given, args.revision) for given in args.name]
    store = Store()
    for name in names:
        found = pulled(name, store, quiet=args.json)
        if args.json:
            print(json.dumps({"name": found.name, "path": found.path, "size": found.n_bytes, "new": found.n_new}))
        else:
            print(printable(found.name))
            note(f"{shown_bytes(found.n_bytes)} in {len(found.parts)} file{'s' * (len(found.parts) > 1)}, "
                  f"{'fetched' if found.n_new else 'here already'}: oxillama chat -m {found.name}")  # fmt: skip
    return 0


def pulled(name: HubName, store: Store, *, quiet: bool = False) -> Pulled:
    """The model, fetched with a bar on a terminal. Raises what `pull` raises."""
    import_hub()
    with DownloadBar() as bar:
        return pull(name, store, bar, (lambda text: None) if quiet else note)


def name_to_pull(given: str, revision: str | None) -> HubName:
    """The model of the Hub that a name means. Raises ConfigError for other names, with what to type."""
    name = read_hub_name(given, "NAME", bare=True)
    if name is None and os.path.exists(os.path.expanduser(given)):
        raise ConfigError(f"NAME must be one of the Hub, hf:OWNER/REPO[:QUANT], and {given!r:.120} is a file here")
    if name is None and given.count("/") > 1 and not given.startswith((".", "/", "~")):
        name = read_hub_name(f"{HUB}{given}", "NAME")
    if name is None:
        likely = hub_name_of(given)
        remedy = f"the model of that name in Ollama's library is there as {likely}" if likely else "give its owner, too"
        raise ConfigError(f"NAME must be one of the Hub, hf:OWNER/REPO[:QUANT], not {given!r:.120}: {remedy}")
    if revision is not None:
        name = names_of_hub(f"hf:{name.repo_id}@{revision}", name)
    return name


def names_of_hub(revised: str, name: HubName) -> HubName:
    """Adds a revision to a name. Raises ConfigError for what can be none."""
    found = read_hub_name(revised, "--revision")
    assert found is not None
    return HubName(name.repo_id, name.filename, name.quant, found.revision)


# ---- list


@dataclass(frozen=True)
class Row:
    """A line of the list. runs: None where the header can't be read."""

    entry: Entry
    n_bytes: int
    quant: str
    architecture: str
    n_parameters: int
    modified: float
    runs: bool
    why: str

    def as_json(self) -> dict[str, Any]:
        """Fields of the row."""
        entry = self.entry
        return {
            "name": entry.name, "size": self.n_bytes, "quantization": self.quant, "architecture": self.architecture,
            "parameters": self.n_parameters, "modified": self.modified, "runs": self.runs, "reason": self.why or None,
            "source": entry.source, "path": entry.path, "parts": list(entry.parts),
        }  # fmt: skip


def command_list(args: argparse.Namespace) -> int:
    """Prints the models that are here, by their headers alone."""
    store = Store()
    entries = store.entries()
    if args.name is not None:
        wanted = args.name.casefold()
        entries = [entry for entry in entries if any(wanted in one.casefold() for _, one in entry.names())]
    rows = [row_of(entry) for entry in entries]
    if args.json:
        print(json.dumps([row.as_json() for row in rows], indent=2))
        return 0
    if not rows:
        note(f"no models in {store.root}, the Hub's cache and Ollama's folder: oxillama pull hf:OWNER/REPO")
        return 0
    print("\n".join(table(list(lines_of(rows, time.time())))))
    return 0


def row_of(entry: Entry) -> Row:
    """The line of a model, whose header is read."""
    common = (entry.n_bytes, entry.quant or "")
    if entry.fault:
        return Row(entry, *common, "", 0, entry.modified, False, entry.fault)
    try:
        with open_gguf(entry.path) as file:
            facts, verdict = header_facts(file), verdict_of(file)
    except (OxiLlamaError, OSError) as error:
        return Row(entry, *common, "", 0, entry.modified, False, " ".join(str(error).split()))
    quant = entry.quant or facts.quant
    return Row(
        entry, entry.n_bytes, quant, facts.architecture, facts.n_parameters, entry.modified, verdict.runs, verdict.why
    )


def lines_of(rows: list[Row], now: float) -> Iterator[list[str]]:
    """Cells of the table."""
    yield ["NAME", "SIZE", "QUANT", "ARCHITECTURE", "AGE", "RUNS"]
    for row in rows:
        why = f"no: {row.why}" if len(row.why) <= WHY else f"no: {row.why[:WHY]}…"
        cells = [row.entry.name, shown_bytes(row.n_bytes), row.quant, row.architecture, age(now - row.modified)]
        yield [printable(cell) or "-" for cell in (*cells, "yes" if row.runs else why)]


def table(rows: list[list[str]]) -> list[str]:
    """Lines of a table, the columns as wide as what is in them."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def age(seconds: float) -> str:
    """A time ago in words."""
    for unit, name in UNITS:
        if (n := int(seconds // unit)) > 0:
            return f"{n} {name}{'s' * (n > 1)}"
    return "now"


# ---- rm


def command_rm(args: argparse.Namespace) -> int:
    """Removes models from the store."""
    store = Store()
    entries = store.entries()
    found = [to_remove(name, store, entries) for name in args.name]
    for entry in found:
        check_removable(entry)
    for entry in found:
        if entry.source == "file" and not args.yes and not confirmed(entry):
            raise ConfigError(f"{entry.name} was put into the store by hand ({entry.place}): give --yes to delete it")
        for line in remove(entry, store):
            print(printable(line))
    return 0


def to_remove(name: str, store: Store, entries: list[Entry]) -> Entry:
    """The model of a name. Raises ModelNotFoundError, with the three nearest names; ConfigError for one of several."""
    entry = store.find(name)
    if entry is not None:
        return entry
    if is_path(name):
        raise ConfigError(f"NAME must be that of a model in the store (oxillama list), and {name!r:.120} is a path")
    near = nearest_names(entries, name)
    remedy = f"; the nearest: {', '.join(near)}" if near else ": `oxillama list` lists them"
    raise ModelNotFoundError(f"NAME {name!r:.120}: there is no model of that name in {store.root}{remedy}")


def confirmed(entry: Entry) -> bool:
    """Whether the user says yes at the terminal; False without one."""
    if sys.stdin is None or not sys.stdin.isatty() or sys.stderr is None:
        return False
    question = f"{entry.place} ({shown_bytes(entry.n_bytes)}) was put there by hand: delete it? [y/N] "
    print(printable(question), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
