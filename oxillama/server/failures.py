"""Failures: errors of every kind as answers, and those that nothing is known of in the log."""

from __future__ import annotations

import logging

from oxillama.server.errors import ApiError, api_error
from oxillama.server.exchange import Exchange

__all__ = ["failure"]

log = logging.getLogger("oxillama")


def failure(error: Exception, exchange: Exchange) -> ApiError:
    """What an error is over HTTP; one that nothing is known of is logged, and said without its content. No answer tells
    where the server has its files."""
    models = exchange.service.models
    found = api_error(error)
    if found is not None and found.code == "engine_failed":
        models.note_failure(exchange.tally.model, error.__context__ if found is error else error)
    if found is None:
        log.error("request %s failed", exchange.id, exc_info=error)
        found = ApiError(500, "internal_error", f"the request {exchange.id} failed by a fault of the server")
    found.message = models.without_paths(found.message)
    return found
