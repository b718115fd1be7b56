"""A second user of a model that is loaded: weights in common, and all else of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from oxillama.config import EngineConfig
from oxillama.engine.loading import EngineParts, choose_context, make_config, make_runner
from oxillama.engine.runner import Runner
from oxillama.engine.sizes import choose_sizes, step_tokens
from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from oxillama.engine.engine import Engine

__all__ = ["OF_USE", "config_beside", "parts_beside"]

# Settings of how a loaded model is used; the others say how it is loaded.
OF_USE = ("context_size", "num_threads", "prefill_chunk_size", "kv_type", "kv_block_size", "kv_budget", "prefix_cache")


def config_beside(engine: Engine, fields: Mapping[str, Any]) -> EngineConfig:
    """The engine's settings with `fields` in place of its own. Raises ConfigError for those that loading needs."""
    engine._core.check_generates()
    config = make_config("restore", engine.config, fields)
    for name in fields:
        if name not in OF_USE:
            raise ConfigError(f"{name} can't be given with a loaded Engine: its model is loaded already")
    return replace(config, context_size=fields.get("context_size") or engine.context_size)


def parts_beside(engine: Engine, config: EngineConfig) -> EngineParts:
    """A runner of its own on the same weights, which stay after the engine is closed. Raises ConfigError."""
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
    own = make_runner(runner.model, config, sizes, config.num_threads or runner.num_threads)
    return EngineParts(
        own, engine.tokenizer, spec, context_size, sizes.n_blocks, sizes.n_slots, engine._pooling, engine.metadata,
        sizes.n_windowed, sizes.window, engine._classifier, engine._snapshots.identity,
        engine._snapshots.tokenizer_identity,
        step_tokens(spec, config.prefill_chunk_size, runner.pager.step_budget if runner.pager else None),
        engine.sampling_defaults,
    )  # fmt: skip
