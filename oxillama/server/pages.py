"""Pages of the server: one to talk with a model, and the description of its API."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from oxillama._util.threads import in_thread
from oxillama.server.config import ServerConfig
from oxillama.server.errors import ApiError
from oxillama.server.exchange import Exchange
from oxillama.server.manual import manual
from oxillama.server.routes import Endpoint
from oxillama.server.tables import openapi

__all__ = ["FOLDER", "pages_of"]

FOLDER = Path(__file__).parent / "page"
HTML = "text/html; charset=utf-8"
TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
OF_MANUAL = ("docs.css", "icon.svg")  # files that /docs needs
RUNNING = b"Ollama is running"  # clients of Ollama's API compare it
# A browser runs the page's own modules alone, and asks this server alone; text of a model becomes HTML in one place.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types dompurify"
)
MANUAL_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True)
class Asset:
    """A file as it is sent. tag: equal for equal bytes, so that a browser asks for what has changed alone."""

    body: bytes
    kind: str
    tag: str


def asset_of(body: bytes, kind: str) -> Asset:
    return Asset(body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


# What follows reads or makes what is sent, the first time: not in the event loop.


@cache
def assets() -> Mapping[str, Asset]:
    """The files that the page consists of, by their paths below /page."""
    files = sorted(path for path in FOLDER.rglob("*") if path.suffix in TYPES)
    return {path.relative_to(FOLDER).as_posix(): asset_of(path.read_bytes(), TYPES[path.suffix]) for path in files}


@cache
def page() -> Asset:
    """The page at /."""
    return asset_of((FOLDER / "index.html").read_bytes(), HTML)


@cache
def api() -> Asset:
    """The description at /openapi.json."""
    return asset_of(json.dumps(openapi(), ensure_ascii=False).encode(), "application/json")


@cache
def manual_page(folder: str) -> Asset:
    """The page at /docs. folder: its files' address, as seen from it."""
    return asset_of(manual(openapi(), folder).encode(), HTML)


async def send(exchange: Exchange, asset: Asset, policy: str = "default-src 'none'") -> None:
    """Sends a file, or that the browser's copy is the same."""
    headers = {
        "etag": asset.tag, "cache-control": "no-cache", "content-security-policy": policy,
        "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
    }  # fmt: skip
    known = {tag.strip().removeprefix("W/") for tag in exchange.headers.get("if-none-match", "").split(",")}
    if asset.tag in known or "*" in known:
        exchange.ended = True
        await exchange.start(304, headers)
        await exchange.send({"type": "http.response.body", "body": b""})
        return
    await exchange.answer(asset.body, asset.kind, headers=headers)


async def root(exchange: Exchange) -> None:
    """GET /: the page for browsers; for clients that want no HTML the line by which they know Ollama's API."""
    config, accepted = exchange.service.config, exchange.headers.get("accept", "*/*")
    wants_page = "text/html" in accepted or (not config.ollama and "*/*" in accepted)
    if not wants_page or (config.ollama and not config.ui):
        await exchange.answer(RUNNING, "text/plain; charset=utf-8")
        return
    if not config.ui:
        raise ApiError(404, "unknown_url", "there is no page: the server was started with --no-ui")
    await send(exchange, await in_thread(page), POLICY)


async def file(exchange: Exchange) -> None:
    """GET /page/{name}: a file of the pages."""
    name = exchange.parameters["name"]
    is_served = exchange.service.config.ui or name in OF_MANUAL
    found = (await in_thread(assets)).get(name) if is_served else None
    if found is None:
        raise ApiError(404, "unknown_url", f"there is no {exchange.path:.200}")
    await send(exchange, found)


async def description(exchange: Exchange) -> None:
    """GET /openapi.json"""
    await send(exchange, await in_thread(api))


async def docs(exchange: Exchange) -> None:
    """GET /docs: the paths and fields of the API, as a page."""
    above = "../" if exchange.scope["path"].endswith("/") else ""
    await send(exchange, await in_thread(manual_page, f"{above}page"), MANUAL_POLICY)


def pages_of(config: ServerConfig) -> list[Endpoint]:
    """The routes of the pages that a server has."""
    found = [Endpoint("GET", "/", root, "a page to talk with a model")]
    if config.ui or config.docs:
        found.append(Endpoint("GET", "/page/{name:path}", file, "its files"))
    if config.docs:
        found.append(Endpoint("GET", "/openapi.json", description, "this API in OpenAPI"))
        found.append(Endpoint("GET", "/docs", docs, "the same as a page"))
    return found
