"""Requests in, text and numbers out: the engine, its scheduler and the low-level session."""

from oxillama.engine.engine import Engine
from oxillama.engine.results import BatchFailure, CancelToken, Chunk, Completion, Timings, TokenLogprob
from oxillama.engine.scheduler import Scheduler

__all__ = ["BatchFailure", "CancelToken", "Chunk", "Completion", "Engine", "Scheduler", "Timings", "TokenLogprob"]
