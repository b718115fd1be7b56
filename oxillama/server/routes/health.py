"""Health, readiness, version, metrics and models."""

from __future__ import annotations

from oxillama._util.threads import in_thread
from oxillama._util.version import __version__
from oxillama.kernels import _table
from oxillama.server.exchange import Exchange
from oxillama.server.json_pieces import Body
from oxillama.server.metrics import content_type, merged, model_states, process_metrics
from oxillama.server.models import described

__all__ = ["health", "metrics", "model", "models", "ready", "version"]


async def health(exchange: Exchange) -> None:
    """GET /health: 200 as soon as the process answers, 503 while it ends."""
    status = exchange.service.status
    await exchange.json({"status": status}, 503 if status == "draining" else 200)


async def ready(exchange: Exchange) -> None:
    """GET /ready: 200 when all models that are loaded at start are loaded, and none has failed."""
    service = exchange.service
    models = service.models
    body: Body = {"status": service.status, "models": {model.id: model.state for model in models.all.values()}}
    if models.reasons:
        body["reasons"] = models.reasons
    await exchange.json(body, 200 if service.status == "ok" else 503)


async def version(exchange: Exchange) -> None:
    """GET /version"""
    loaded = [model.engine for model in exchange.service.models.all.values() if model.engine is not None]
    threads = max((engine.engine.num_threads for engine in loaded), default=0)
    await exchange.json({"name": "oxillama", "version": __version__, "tier": _table.tier(), "threads": threads})


async def metrics(exchange: Exchange) -> None:
    """GET /metrics: of a key its own counts; all of them for administrators, and where there is one key alone."""
    service = exchange.service
    openmetrics = "application/openmetrics-text" in exchange.headers.get("accept", "")
    end = "# EOF\n" if openmetrics else ""
    if (own := service.own_metrics(exchange.key)) is not None:
        await exchange.answer((own.text(openmetrics) + end).encode(), content_type(openmetrics))
        return
    engines = {m.id: m.engine.engine for m in service.models.all.values() if m.engine is not None}
    snapshots = await in_thread(lambda: {name: e.metrics_snapshot() for name, e in engines.items()})
    states = {model.id: model.state for model in service.models.all.values()}
    text = merged(snapshots, openmetrics=openmetrics) + model_states(states)
    text += service.metrics.text(openmetrics) + process_metrics(openmetrics)
    await exchange.answer((text + end).encode(), content_type(openmetrics))


async def models(exchange: Exchange) -> None:
    """GET /v1/models"""
    await exchange.json({"object": "list", "data": exchange.service.models.listed()})


async def model(exchange: Exchange) -> None:
    """GET /v1/models/{id}; without an id, as clients that join addresses ask, the list."""
    name = exchange.parameters["id"]
    if not name:
        await models(exchange)
        return
    chosen = exchange.service.models.find(name)
    await exchange.json(described(chosen.model, name, None if chosen.adapter is None else chosen.model.id))
