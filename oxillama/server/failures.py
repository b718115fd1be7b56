"""Failures: errors of every kind as answers, and those that nothing is known of in the log."""

from __future__ import annotations

import logging

from oxillama.server.errors import ApiError, api_error
from oxillama.server.exchange import Exchange

__all__ = ["failure"]

log = logging.getLogger("oxillama")


def failure(error: Exception, exchange: Exchange) -> ApiError:
    """Translates an error into one over HTTP; an unknown one is logged, and said without its content. No answer tells
    where the server has its files."""
    models = exchange.service.models
    found = api_error(error)
    if found is not None and found.code == "engine_failed":
        models.note_failure(exchange.tally.model, error.__context__ if found is error else error)
    if found is None:
        _note(error, exchange)
        found = ApiError(500, "internal_error", f"the request {exchange.id} failed by a fault of the server")
    found.message = models.without_paths(found.message)
    return found


def _note(error: Exception, exchange: Exchange) -> None:
    """Logs a fault, with its traceback unless the same one was logged less than a second ago."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
    if exchange.service.repeats.is_new((type(error), place)) is not None:
        log.error("request %s failed", exchange.id, exc_info=error)
    else:
        log.error("request %s failed as another one did: %s at %s", exchange.id, type(error).__name__, place)
