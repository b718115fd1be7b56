"""Models of Ollama's API: those that are served, those in memory, and what there is in place of its registry."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

from oxillama._util.version import __version__
from oxillama.errors import LoadError
from oxillama.gguf import open as open_gguf
from oxillama.sampling import SamplerChain
from oxillama.server.errors import ApiError
from oxillama.server.exchange import PART, Exchange
from oxillama.server.field_types import Record, Values
from oxillama.server.fields_ollama import COPY, CREATE, REGISTRY, SHOW
from oxillama.server.json_pieces import Body, written_parts
from oxillama.server.model_facts import Facts
from oxillama.server.models import SHOWN_SAMPLING, ServedModel
from oxillama.server.ollama.facts import TEMPLATE, details, facts_of, model_info, tensors_of
from oxillama.server.ollama.names import moment, read_name, served_name, tagged, timestamp
from oxillama.server.residence import leaves_in

__all__ = [
    "blob",
    "check_admin",
    "copy",
    "create",
    "has_blob",
    "push",
    "refused_here",
    "running",
    "show",
    "tags",
    "version",
]

API_VERSION = "0.33.0"  # of Ollama, whose API this is: clients ask for a least one
INSTEAD = (
    "models are files that the server is started with: oxillama serve -m FILE, --models-dir, or [[model]] of --config"
)
# Sampling that is shown as parameters of a model, with the names that options have for it.
_PARAMETERS = {**dict(zip(SHOWN_SAMPLING, SHOWN_SAMPLING, strict=True)), "repetition_penalty": "repeat_penalty"}


async def version(exchange: Exchange) -> None:
    """GET /api/version"""
    await exchange.json({"version": API_VERSION, "oxillama": __version__})


async def tags(exchange: Exchange) -> None:
    """GET /api/tags"""
    found = await exchange.elsewhere(lambda: list(listed(exchange)))
    await exchange.json({"models": found})


def listed(exchange: Exchange) -> Iterator[Body]:
    """Every name of a model, and its adapters."""
    models = exchange.service.models
    for model in models.all.values():
        facts, engine = facts_of(model, models.template, exchange.service.config.tool_format), model.engine
        for name in (model.id, *model.aliases):
            if name != "*":
                yield entry(name, facts, facts.digest) | {"modified_at": timestamp(facts.modified)}
        for adapter in engine.engine.loras if engine is not None else ():
            digest = hashlib.sha256(f"{facts.digest}:{adapter}".encode()).hexdigest()
            adapted = entry(f"{model.id}:{adapter}", facts, digest, tagged(model.id))
            yield adapted | {"modified_at": timestamp(facts.modified)}


def entry(name: str, facts: Facts, digest: str, parent: str = "") -> Body:
    """Entry of a model in lists."""
    return {
        "name": tagged(name),
        "model": tagged(name),
        "size": facts.n_bytes,
        "digest": digest,
        "details": details(facts, parent),
        "capabilities": list(facts.capabilities),
    }


async def running(exchange: Exchange) -> None:
    """GET /api/ps"""
    found = await exchange.elsewhere(lambda: list(in_memory(exchange)))
    await exchange.json({"models": found})


def in_memory(exchange: Exchange) -> Iterator[Body]:
    """The models that are loaded, the ones first that stay longest."""
    service = exchange.service
    idle = service.config.idle_unload
    loaded = [(leaves_in(model, idle), model, model.engine) for model in service.models.all.values()]
    for left, model, engine in sorted(loaded, key=lambda one: -one[0]):
        if engine is None:
            continue
        facts = facts_of(model, service.models.template, service.config.tool_format)
        yield entry(model.id, facts, facts.digest) | {
            "expires_at": moment(left),
            "size_vram": 0,
            "context_length": engine.engine.context.factory.room,
        }


async def show(exchange: Exchange) -> None:
    """POST /api/show"""
    values = await exchange.fields(SHOW)
    models = exchange.service.models
    name = served_name(models, read_name(values))
    model = models.find(name).model
    if model.engine is None and model.path is None:
        await models.use(name)
    verbose = read_verbose(values)
    with models.find(name).in_use():
        try:
            form = exchange.service.config.tool_format
            body = await exchange.elsewhere(lambda: written_parts(shown(model, models.template, verbose, form), PART))
        except LoadError:
            text = f"the file of the model {model.id} can't be read"
            raise ApiError(503, "engine_failed", text, headers={"Retry-After": "60"}) from None
    await exchange.answer(body, "application/json")


def read_verbose(values: Values) -> bool:
    """Reads whether long lists are wanted, too."""
    return bool(values.get("verbose"))


def shown(model: ServedModel, template: str | None, verbose: bool, tool_format: str | None = None) -> Body:
    """Description of one model. template, tool_format: of the server, in place of the model's. Raises LoadError."""
    facts = facts_of(model, template, tool_format)
    if model.engine is not None:
        metadata: Body = dict(model.engine.engine.metadata)
        identity = model.engine.engine.context.snapshots.identity
        path = None if identity is None else identity.path
        parameters = parameters_of(model.ollama_chain, model.engine.engine.context.factory.room)
    else:
        path = model.path
        assert path is not None
        with open_gguf(path) as file:
            metadata = dict(file.metadata)
        parameters = []
    source = template or metadata.get(TEMPLATE) or ""
    lines = [f"{name:<30} {value}" for name, value in parameters]
    found: Body = {
        "license": str(metadata.get("general.license", "")),
        "modelfile": modelfile(model, path, source, parameters),
        "parameters": "\n".join(lines),
        "template": source,
        "details": details(facts),
        "model_info": model_info(metadata, facts, verbose),
        "capabilities": list(facts.capabilities),
        "modified_at": timestamp(facts.modified),
    }
    return found | ({"tensors": tensors_of(path)} if verbose and path is not None else {})


def parameters_of(chain: SamplerChain | None, context_size: int) -> list[tuple[str, str]]:
    """Parameters that count where a request's options say nothing else."""
    config = None if chain is None else chain.config
    sampling = [] if config is None else [(shown, f"{getattr(config, own):g}") for own, shown in _PARAMETERS.items()]
    return [("num_ctx", str(context_size)), *sampling]


def modelfile(model: ServedModel, path: str | None, template: str, parameters: list[tuple[str, str]]) -> str:
    """A description of a model in the form of Ollama's files. The folder of its file is not told."""
    lines = [f"# {model.id}, as oxillama serves it", f"FROM {model.id if path is None else os.path.basename(path)}"]
    if template:
        lines.append(f'TEMPLATE """{template}"""')
    lines += [f"PARAMETER {name} {value}" for name, value in parameters]
    lines += [f"ADAPTER {name}" for name in (model.engine.engine.loras if model.engine is not None else ())]
    return "\n".join(lines)


# ---- in place of a registry


async def refused(exchange: Exchange, record: Record, what: str) -> None:
    """Raises ApiError: 403 for clients without an administrator's key where there are keys, 501 for all others."""
    raise refused_here(exchange, await exchange.fields(record), what)


def refused_here(exchange: Exchange, values: Values, what: str) -> ApiError:
    """The error where there is no folder of models. Raises ApiError for clients without an administrator's key."""
    name = read_name(values)
    known = name and name in {tagged(one) for one in exchange.service.models.names()} | {
        *exchange.service.models.names()
    }
    served = f"; {name} is served already" if known else ""
    check_admin(exchange, what)
    text = f"{exchange.path} {what}, which this server has no folder for: {INSTEAD}{served}"
    return ApiError(501, "not_implemented", text)


def check_admin(exchange: Exchange, what: str) -> None:
    service = exchange.service
    if (service.keys or service.admins) and not exchange.is_admin:
        raise ApiError(403, "admin_only", f"{exchange.path} {what}: this needs the key of an administrator; {INSTEAD}")


async def push(exchange: Exchange) -> None:
    """POST /api/push"""
    await refused(exchange, REGISTRY, "sends a model away")


async def copy(exchange: Exchange) -> None:
    """POST /api/copy"""
    await refused(exchange, COPY, "copies a model")


async def create(exchange: Exchange) -> None:
    """POST /api/create"""
    await refused(exchange, CREATE, "makes a model")


async def blob(exchange: Exchange) -> None:
    """POST /api/blobs/{digest}: its body is not read."""
    check_admin(exchange, "takes a file")
    text = f"{exchange.path:.100} takes a file, which this server has no folder for: {INSTEAD}"
    raise ApiError(501, "not_implemented", text, headers={"Connection": "close"})


async def has_blob(exchange: Exchange) -> None:
    """HEAD /api/blobs/{digest}"""
    raise ApiError(404, "blob_not_found", f"blob {exchange.parameters['digest']!r:.100} not found")
