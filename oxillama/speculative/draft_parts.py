"""From what a caller names to the parts of a draft model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from oxillama.config import EngineConfig, ModelSource
from oxillama.engine.engine import Engine
from oxillama.engine.loading import EngineParts, choose_context, load_parts, make_config
from oxillama.engine.runner import Runner
from oxillama.engine.sizes import choose_sizes
from oxillama.errors import ConfigError, UnsupportedModelError

__all__ = ["Source", "parts_of"]

Source = ModelSource | Engine

# Settings of how a loaded model is used; the others say how it is loaded.
OF_USE = ("context_size", "num_threads", "prefill_chunk_size", "kv_type", "kv_block_size", "kv_budget", "prefix_cache")


def parts_of(model: Source, parts: EngineParts | None, fields: Mapping[str, Any]) -> tuple[EngineConfig, EngineParts]:
    """Raises ConfigError, LoadError and its children, TypeError for an unknown field."""
    if isinstance(model, Engine):
        config = _config_beside(model, fields)
        parts = parts or _parts_beside(model, config)
    else:
        config = make_config(None, {"model_path": model, **fields})
        parts = parts or load_parts(config)
    if not parts.spec.causal:
        raise UnsupportedModelError(
            f"architecture {parts.spec.arch} reads texts whole and predicts no next token: it can't be a draft"
        )
    return config, parts


def _config_beside(engine: Engine, fields: Mapping[str, Any]) -> EngineConfig:
    engine._core.check_generates()
    config = make_config(engine.config, fields)
    for name in fields:
        if name not in OF_USE:
            raise ConfigError(f"{name} can't be given with a loaded Engine: its model is loaded already")
    return replace(config, context_size=fields.get("context_size") or engine.context_size)


def _parts_beside(engine: Engine, config: EngineConfig) -> EngineParts:
    """A runner of its own on the same weights."""
    spec, runner = engine.model_config, engine._core.runner
    if not isinstance(runner, Runner):
        raise ConfigError("the engine has no model that another one could share")
    if config.context_size is not None and config.context_size > engine.context_size:
        raise ConfigError(
            f"context_size must be at most the engine's {engine.context_size}, for which its model is loaded, not "
            f"{config.context_size}"
        )
    context_size = choose_context(spec, config)
    sizes = choose_sizes(spec.states, context_size, config)
    own = Runner(
        runner.model,
        num_threads=config.num_threads or runner.num_threads,
        kv_type=config.kv_type,
        kv_block_size=config.kv_block_size,
        n_blocks=sizes.n_blocks,
        n_slots=sizes.n_slots,
        n_windowed=sizes.n_windowed,
    )
    return EngineParts(
        own, engine.tokenizer, spec, context_size, sizes.n_blocks, sizes.n_slots, n_windowed=sizes.n_windowed,
        window=sizes.window, identity=engine._snapshots.identity,
    )  # fmt: skip
