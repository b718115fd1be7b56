"""Command `oxillama ps`: the models of a running server."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import urllib.error
import urllib.request
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from oxillama.cli.models import age, table
from oxillama.errors import ConfigError, LoadError
from oxillama.gguf.values import printable
from oxillama.server.config import OLLAMA_PORT, PORT
from oxillama.store.places import shown_bytes

__all__ = ["ps"]

TIMEOUT = 10.0
MOST = 16 << 20  # bytes of an answer
FAR = 366 * 86400.0  # seconds after which a model leaves that stays


def ps(args: argparse.Namespace) -> int:
    """Prints the models of a server, with those in memory first."""
    url, listed = found_server(args.url, args.api_key_file)
    loaded = {one.get("name"): one for one in entries(asked(url, "/api/ps", args.api_key_file), "models")}
    rows = [row for one in entries(listed, "data") if (row := described(one, loaded))["parent"] is None]
    rows.sort(key=lambda row: row["state"] != "ready")
    if args.json:
        print(json.dumps(rows, indent=2))
        return 0
    now = datetime.now(UTC)
    cells = [["NAME", "STATE", "SIZE", "QUANT", "CONTEXT", "LEAVES IN"]]
    for row in rows:
        shown = (row["name"], row["state"], shown_bytes(row["size"]) if row["size"] else "", row["quantization"],
                 str(row["context"] or ""), leaves(row["expires_at"], now))  # fmt: skip
        cells.append([printable(cell) or "-" for cell in shown])
    print("\n".join(table(cells)))
    return 0


def found_server(given: str | None, key_file: str | None) -> tuple[str, Any]:
    """Address and models of a server: the given one, or the first of this machine that answers. Raises LoadError."""
    if given is None:
        with contextlib.suppress(NoServerError):
            return found_server(f"http://127.0.0.1:{PORT}", key_file)
        given = f"http://127.0.0.1:{OLLAMA_PORT}"
        try:
            return found_server(given, key_file)
        except NoServerError:
            given = f"http://127.0.0.1:{PORT}"  # which the error names
    url = checked_url(given)
    return url, asked(url, "/v1/models", key_file)


class NoServerError(LoadError):
    """No server answers at an address."""


def checked_url(given: str | None) -> str:
    """The server's address without its last slash. Raises ConfigError."""
    url = given or f"http://127.0.0.1:{PORT}"
    url = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  (raises for one that is no number)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--url must be the address of a server, such as http://127.0.0.1:{PORT}, not {given!r:.120}")
    return url.rstrip("/")


def asked(url: str, path: str, key_file: str | None) -> Any:
    """JSON that a server answers. Raises LoadError."""
    request = urllib.request.Request(url + path, headers={"Accept": "application/json", **headers(key_file)})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return json.loads(answer.read(MOST))
    except urllib.error.HTTPError as error:
        remedy = ": give its key as OXILLAMA_API_KEY, or --api-key-file" if error.code in (401, 403) else ""
        raise LoadError(f"{url}{path} answers {error.code}{remedy}") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or error
        raise NoServerError(
            f"no server answers at {url}: {why}; start one with `oxillama serve`, or give --url"
        ) from None


def headers(key_file: str | None) -> dict[str, str]:
    """The header of a key: that of the file's first line, NAME:KEY or KEY; else OXILLAMA_API_KEY."""
    key = os.environ.get("OXILLAMA_API_KEY", "")
    if key_file is not None:
        from oxillama.cli.files import read_text_file

        lines = [line.split()[0] for line in read_text_file("--api-key-file", key_file).splitlines() if line.strip()]
        if not lines:
            raise ConfigError(f"--api-key-file {key_file} has no key")
        key = lines[0].partition(":")[2] or lines[0]
    return {"Authorization": f"Bearer {key}"} if key else {}


def entries(answer: Any, name: str) -> list[dict[str, Any]]:
    """The list of an answer, which may be anything."""
    found = answer.get(name) if isinstance(answer, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def described(one: dict[str, Any], loaded: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    """A model of both lists under the names that are printed."""
    name, own = str(one.get("id", "")), one.get("oxillama")
    own = own if isinstance(own, dict) else {}
    there = loaded.get(name) or loaded.get(f"{name}:latest") or {}
    details = there.get("details")
    return {
        "name": name,
        "state": str(own.get("state") or ("ready" if there else "")),
        "parent": own.get("parent"),
        "size": there.get("size") if isinstance(there.get("size"), int) else None,
        "quantization": str(details.get("quantization_level", "")) if isinstance(details, dict) else "",
        "context": there.get("context_length"),
        "expires_at": there.get("expires_at") if isinstance(there.get("expires_at"), str) else None,
    }


def leaves(expires: str | None, now: datetime) -> str:
    """Time until a model leaves memory."""
    if expires is None:
        return ""
    try:
        left = (datetime.fromisoformat(expires) - now).total_seconds()
    except (TypeError, ValueError):
        return ""
    return "never" if left > FAR else "now" if left <= 0 else f"{int(left)} s" if left < 60 else age(left)
