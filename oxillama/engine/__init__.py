"""Requests in, text and numbers out: the engine, its scheduler and the low-level session."""

from oxillama.engine.engine import Engine
from oxillama.engine.results import BatchFailure, CancelToken, Chunk, Completion, Timings
from oxillama.engine.scheduler import Scheduler
from oxillama.engine.sequence import Sequence, SequenceState
from oxillama.engine.session import Session

__all__ = [
    "BatchFailure",
    "CancelToken",
    "Chunk",
    "Completion",
    "Engine",
    "Scheduler",
    "Sequence",
    "SequenceState",
    "Session",
    "Timings",
]
