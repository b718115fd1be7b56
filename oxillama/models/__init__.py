"""Architectures: hyper-parameters, weights and forward passes. ``load_model`` builds what a file describes."""

from oxillama.models.experts import ExpertSpec
from oxillama.models.registry import (
    Architecture,
    Model,
    all_architectures,
    architectures,
    find_architecture,
    load_model,
)
from oxillama.models.spec import ModelSpec

__all__ = [
    "Architecture",
    "ExpertSpec",
    "Model",
    "ModelSpec",
    "all_architectures",
    "architectures",
    "find_architecture",
    "load_model",
]
