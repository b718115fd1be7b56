"""Requests in, text and numbers out: the engine, its scheduler and the low-level session."""

from oxillama.core.beam_search import BeamSearchConfig
from oxillama.core.results import (
    BatchFailure,
    BeamHypothesis,
    CancelToken,
    Chunk,
    Completion,
    Timings,
    TokenLogprob,
    Usage,
)
from oxillama.core.session import Session
from oxillama.engine.engine import Engine
from oxillama.scheduling.scheduler import Scheduler
from oxillama.scheduling.sequence import Sequence, SequenceState

__all__ = [
    "BatchFailure",
    "BeamHypothesis",
    "BeamSearchConfig",
    "CancelToken",
    "Chunk",
    "Completion",
    "Engine",
    "Scheduler",
    "Sequence",
    "SequenceState",
    "Session",
    "Timings",
    "TokenLogprob",
    "Usage",
]
