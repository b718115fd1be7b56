"""Request router of Ray Serve that sends beginnings of prompts to the replica that has them."""

from __future__ import annotations

from functools import cache
from typing import Any

from oxillama.ray.prefix import ranked

__all__ = ["ROUTER"]

ROUTER = "oxillama.ray.routing.PrefixRouter"


def __getattr__(name: str) -> Any:
    """Makes the class when it is asked for: other modules of the package are imported where there is no Ray."""
    if name != "PrefixRouter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _router()


@cache
def _router() -> type[Any]:
    """A `ray.serve.request_router.RequestRouter` that keeps nothing, so that all fronts agree.

    Ray's own PrefixCacheAffinityRouter can be imported only where vLLM or SGLang is installed, asks one actor of the
    cluster twice for each request, and with its defaults never leaves a replica for one with less to do.
    """
    from ray.serve.request_router import RequestRouter

    class PrefixRouter(RequestRouter):  # type: ignore[misc]  # it is unknown here
        async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
            """The replicas one by one, in the order of `ranked`."""
            if pending_request is None:
                return [candidate_replicas]
            pending_request.routing_context.should_backoff = True  # when all of them are full
            known = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
            queued = self.replica_queue_len_cache
            loads = {name: queued.get(replica.replica_id) or 0 for name, replica in known.items()}
            return [[known[name]] for name in ranked(pending_request.args[0].key, loads)]

    return PrefixRouter
