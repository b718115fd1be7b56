"""Requests in, text and numbers out: the engine, its scheduler and the low-level session."""

from oxillama.engine.beams import BeamSearchConfig
from oxillama.engine.engine import Engine
from oxillama.engine.results import (
    BatchFailure,
    BeamHypothesis,
    CancelToken,
    Chunk,
    Completion,
    Timings,
    TokenLogprob,
    Usage,
)
from oxillama.engine.scheduler import Scheduler
from oxillama.engine.sequence import Sequence, SequenceState
from oxillama.engine.session import Session

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
