"""Administration: adapters, models that are loaded and unloaded, requests under way, and the end of the server."""

from __future__ import annotations

import os
from pathlib import Path

from oxillama._util.threads import in_thread
from oxillama.errors import ConfigError, LoadError
from oxillama.lora.peft import ADAPTER_FILES
from oxillama.server.errors import ApiError, bad_value
from oxillama.server.exchange import Exchange
from oxillama.server.field_types import Field, Record, Text, Values
from oxillama.server.fields_sampling import refused
from oxillama.server.heap import trim
from oxillama.server.models import ServedModel

__all__ = [
    "LOAD_ADAPTER",
    "MODEL_NAME",
    "NOTHING",
    "UNLOAD_ADAPTER",
    "cancel",
    "clear_cache",
    "drain",
    "load_adapter",
    "load_model",
    "requests",
    "unload_adapter",
    "unload_model",
]

NAME = Field("lora_name", Text(1, 256), "of the adapter", required=True)
BASE = Field("base_model", Text(1, 256), "the model that it is of; default: the first")
LOAD_ADAPTER = Record((
    NAME,
    Field("lora_path", Text(1, 4096), "a file or folder below `--lora-dir`", required=True),
    BASE,
    refused("load_inplace", "unload it first", False),
))  # fmt: skip
UNLOAD_ADAPTER = Record((NAME, BASE, refused("lora_int_id", "give lora_name")))
MODEL_NAME = Record((Field("model", Text(1, 256), "of the server's", required=True),))
NOTHING = Record(())


async def load_adapter(exchange: Exchange) -> None:
    """POST /v1/load_lora_adapter"""
    values = await exchange.fields(LOAD_ADAPTER)
    chosen = await exchange.read_model(values, "base_model")
    name, path = read_adapter(values, exchange.service.config.lora_dir)
    engine = chosen.model.ready.engine
    if not name.isprintable():
        raise bad_value("lora_name", f"lora_name must have no control characters, not {name!r:.80}")
    if name in engine.loras or exchange.service.models.means({name, f"{chosen.model.id}:{name}"}):
        raise ApiError(409, "adapter_exists", f"there is an adapter or a model {name!r:.80} already", "lora_name")
    try:
        await exchange.elsewhere(lambda: engine.load_lora(name, path))
    except LoadError as error:
        raise bad_value("lora_path", f"lora_path: {error}") from None
    except ConfigError as error:
        raise ApiError(409, "adapter_exists", str(error), "lora_name") from None
    await exchange.json({"status": "loaded", "id": f"{chosen.model.id}:{name}"})


def read_adapter(values: Values, folder: str | None) -> tuple[str, Path]:
    """Reads the name of an adapter, and its file, below the folder of adapters. Raises ApiError."""
    return values["lora_name"], adapter_path(values["lora_path"], folder)


def adapter_path(given: str, folder: str | None) -> Path:
    """The file below the folder of adapters that a request names. Raises ApiError for one elsewhere."""
    if folder is None:
        raise ApiError(403, "admin_only", "the server has no folder of adapters: start it with --lora-dir")
    root = Path(os.path.realpath(os.path.expanduser(folder)))
    try:
        path = Path(os.path.realpath(root / given))
    except (OSError, ValueError):  # a name with a null character
        path = root.parent
    inside = [Path(os.path.realpath(path / file)) for file in ADAPTER_FILES]  # of a folder, links to other places
    if path == root or not all(one.is_relative_to(root) for one in (path, *inside)):
        raise bad_value("lora_path", f"lora_path must be below the server's folder of adapters, not {given!r:.80}")
    if not path.exists():
        raise ApiError(404, "adapter_not_found", f"there is no adapter {given!r:.80}", "lora_path")
    return path


def read_adapter_name(values: Values) -> str:
    """Reads the name of a loaded adapter."""
    name: str = values["lora_name"]
    return name


async def unload_adapter(exchange: Exchange) -> None:
    """POST /v1/unload_lora_adapter"""
    values = await exchange.fields(UNLOAD_ADAPTER)
    chosen = await exchange.read_model(values, "base_model")
    try:
        await exchange.elsewhere(lambda: chosen.model.ready.engine.unload_lora(read_adapter_name(values)))
    except ConfigError as error:
        raise ApiError(404, "adapter_not_found", str(error), "lora_name") from None
    await exchange.json({"status": "unloaded"})


async def read_named(exchange: Exchange) -> ServedModel:
    """The model that a request names."""
    values = await exchange.fields(MODEL_NAME)
    return exchange.service.models.find(values["model"]).model


async def load_model(exchange: Exchange) -> None:
    """POST /admin/models/load"""
    model = await read_named(exchange)
    if model.state == "failed":
        model.state = "idle"  # once more
    await exchange.service.models.use(model.id)
    await exchange.json({"model": model.id, "state": model.state})


async def unload_model(exchange: Exchange) -> None:
    """POST /admin/models/unload: one that no request uses, and that the server can load again."""
    model = await read_named(exchange)
    if model.load is None:
        raise ApiError(409, "model_is_kept", f"{model.id} was loaded by the program that serves it, and stays", "model")
    if model.pinned:
        raise ApiError(409, "model_is_kept", f"{model.id} stays in memory (--keep-loaded)", "model")
    if model.n_open:
        raise ApiError(409, "model_in_use", f"{model.id} has {model.n_open} requests under way", "model")
    await exchange.service.models.unload(model)
    await exchange.json({"model": model.id, "state": model.state})


async def clear_cache(exchange: Exchange) -> None:
    """POST /admin/cache/clear: gives up what is kept of requests for those to come: KV, ids of texts, grammars."""
    await exchange.fields(NOTHING)
    engines = [model.engine.engine for model in exchange.service.models.all.values() if model.engine is not None]
    freed = [await in_thread(engine.shrink_to_fit) for engine in engines]
    await in_thread(trim)
    await exchange.json({"freed_bytes": sum(freed)})


async def drain(exchange: Exchange) -> None:
    """POST /admin/drain: as SIGTERM, but the process stays, and /ready says that it takes nothing."""
    await exchange.fields(NOTHING)
    exchange.service.draining = True
    await exchange.json({"status": exchange.service.status})


async def requests(exchange: Exchange) -> None:
    """GET /admin/requests"""
    found = [one.summary() for one in exchange.service.open if one is not exchange]
    gate = exchange.service.gate
    await exchange.json({"requests": found, "running": gate.running, "waiting": gate.waiting})


async def cancel(exchange: Exchange) -> None:
    """DELETE /admin/requests/{id}: ends a request as if its client had left."""
    wanted = exchange.parameters["id"]
    found = [one for one in exchange.service.open if one.id == wanted and one is not exchange]
    if not found:
        raise ApiError(404, "request_not_found", f"no request {wanted!r:.80} is under way", "id")
    for one in found:
        one.cancel()
    await exchange.json({"cancelled": len(found)})
