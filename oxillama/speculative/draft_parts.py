"""From what a caller names to the parts of a draft model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oxillama.config import EngineConfig, ModelSource
from oxillama.engine.engine import Engine
from oxillama.engine.loading import EngineParts, load_parts, make_config
from oxillama.engine.sharing import config_beside, parts_beside
from oxillama.errors import UnsupportedModelError

__all__ = ["Source", "parts_of"]

Source = ModelSource | Engine


def parts_of(model: Source, parts: EngineParts | None, fields: Mapping[str, Any]) -> tuple[EngineConfig, EngineParts]:
    """Raises ConfigError, LoadError and its children, TypeError for an unknown field."""
    if isinstance(model, Engine):
        config = config_beside(model, fields)
        parts = parts or parts_beside(model, config)
    else:
        config = make_config("DraftModel", None, {"model_path": model, **fields})
        parts = parts or load_parts(config)
    if not parts.spec.causal:
        raise UnsupportedModelError(
            f"architecture {parts.spec.arch} reads texts whole and predicts no next token: it can't be a draft"
        )
    return config, parts
