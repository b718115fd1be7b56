"""Architectures: hyper-parameters, weights and forward passes. ``load_model`` builds what a file describes."""

from oxillama.models.experts import ExpertSpec
from oxillama.models.registry import Model, architectures, check_architecture, load_model
from oxillama.models.spec import ModelSpec

__all__ = ["ExpertSpec", "Model", "ModelSpec", "architectures", "check_architecture", "load_model"]
