"""Application of Ray Serve: a deployment of replicas, and one of fronts that take the requests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from oxillama._util.checks import check_choice, check_float, check_int, check_keywords
from oxillama.config import EngineConfig, EngineOptions
from oxillama.data.engines import with_absolute_paths
from oxillama.errors import ConfigError
from oxillama.store.names import read_hub_name
from oxillama.store.resolve import find_model, is_name, kept_path

if TYPE_CHECKING:
    from oxillama.server import ServerConfig

__all__ = ["ROUTINGS", "serve_app"]

REPLICAS = "Replica"
ROUTINGS = ("prefix", "load")
MOST_REPLICAS = 1 << 16


def serve_app(
    model: str | os.PathLike[str] | None = None,
    *,
    num_replicas: int | str = 1,
    num_cpus: float = 1,
    name: str = "",
    server: ServerConfig | Mapping[str, Any] | None = None,
    routing: Any = "prefix",
    num_fronts: int = 1,
    replica_options: Mapping[str, Any] | None = None,
    **engine: Unpack[EngineOptions],
) -> Any:
    """An application for `ray.serve.run`, which serves the HTTP API of `oxillama.server` from replicas of a model.

    model: path of a GGUF file, the same on all nodes; None for the model that ships with the package.
    num_replicas: engines, each in a process of its own; "auto" lets Ray Serve choose by load.
    num_cpus: CPUs that Ray keeps for each, and thereby threads, unless `num_threads` is given.
    name: the model's name for clients; by default as its file says.
    server: a `ServerConfig` or its fields; `max_running` is how many requests a replica works on at a time, up to
        `max_queue` wait in front. Files that it names are read on the nodes. Of sockets Ray Serve decides.
    routing: "prefix" sends requests that begin alike to the same replica while it has no more than twice the mean load,
        "load" goes by load alone; or a `ray.serve.config.RequestRouterConfig`, whose router finds the text of a request
        as `pending_request.args[0].prompt`.
    num_fronts: processes that take requests and pass them on.
    replica_options: further options of the replicas' deployment (`ray.serve.deployment`), such as autoscaling_config or
        max_replicas_per_node; they count before those made here.
    engine: fields of `EngineConfig`.

    Raises ConfigError for wrong settings, ModelNotFoundError if there is no such file here, and ImportError, which
    names the extra, without Ray.
    """
    check_keywords("serve_app", engine, EngineOptions.__annotations__)
    settings = EngineConfig(_path(model), **with_absolute_paths(engine))
    if num_replicas != "auto":
        num_replicas = check_int("num_replicas", num_replicas, 1, MOST_REPLICAS)
    num_cpus = check_float("num_cpus", num_cpus, 0.01, 4096)
    num_fronts = check_int("num_fronts", num_fronts, 1, MOST_REPLICAS)
    if isinstance(routing, str):
        check_choice("routing", routing, ROUTINGS)
    serve, config = _ray_serve(), _server_config(server)
    options = _replica_options(serve, config, num_replicas, num_cpus, routing) | dict(replica_options or {})
    replicas = serve.deployment(name=REPLICAS, **options)(_replica_class())
    return _front(serve, config, num_fronts).bind(replicas.bind(settings, config, name))


def _path(model: Any) -> str | None:
    """The model's path as the nodes have it."""
    from oxillama.errors import ModelNotFoundError

    if model is None:
        return None
    if not isinstance(model, str | os.PathLike):
        raise ConfigError(f"model must be a path that all nodes have, or None, not {type(model).__name__}")
    path = kept_path(model)
    if is_name(path):
        return path if read_hub_name(path) is not None else find_model(path, "model", fetch=False)
    if not os.path.isfile(path):
        raise ModelNotFoundError(f"model {path}: there is no such file")
    return path


def _ray_serve() -> Any:
    try:
        from ray import serve
    except ImportError as error:
        raise ImportError(f"oxillama.ray needs {error.name}: pip install '.[ray]' from a checkout") from None
    return serve


def _server_config(server: Any) -> ServerConfig:
    from oxillama.server import ServerConfig, create_app  # noqa: F401  # what it needs is missed here, not on a node

    if server is None or isinstance(server, Mapping):
        return ServerConfig(**(server or {}))
    if not isinstance(server, ServerConfig):
        raise ConfigError(f"server must be a ServerConfig or a mapping of its fields, not {type(server).__name__}")
    return server


def _replica_class() -> type[Any]:
    from oxillama.ray.replica import Replica

    return Replica


def _replica_options(
    serve: Any, config: ServerConfig, num_replicas: int | str, num_cpus: float, routing: Any
) -> dict[str, Any]:
    """Options of the replicas' deployment: the engine's limits, as Ray Serve calls them."""
    threads = {"OMP_NUM_THREADS": str(max(1, int(num_cpus)))}
    found: dict[str, Any] = {
        "num_replicas": num_replicas,
        "ray_actor_options": {"num_cpus": num_cpus, "runtime_env": {"env_vars": threads}},
        "max_ongoing_requests": config.max_running,
        "max_queued_requests": config.max_queue,
        "graceful_shutdown_timeout_s": config.drain_timeout,
        "max_constructor_retry_count": 3,  # a file that can't be loaded can't be loaded the twentieth time either
    }
    if routing != "load":
        found["request_router_config"] = _router_config(serve, routing)
    return found


def _router_config(serve: Any, routing: Any) -> Any:
    from ray.serve.config import RequestRouterConfig

    from oxillama.ray.routing import ROUTER

    if routing == "prefix":
        return RequestRouterConfig(request_router_class=ROUTER)
    if not isinstance(routing, RequestRouterConfig | dict):
        raise ConfigError(f"routing must be 'prefix', 'load' or a RequestRouterConfig, not {type(routing).__name__}")
    return routing


def _front(serve: Any, config: ServerConfig, num_fronts: int) -> Any:
    """The deployment that takes requests, as many as the server has connections; it computes nothing."""
    from oxillama.ray.front import Front

    return serve.deployment(
        name="Front",
        num_replicas=num_fronts,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=config.max_connections,
        graceful_shutdown_timeout_s=config.drain_timeout,
    )(serve.ingress(Front(REPLICAS, config))())
