"""Engines of mappers: each process opens a model once for all mappers of the same settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oxillama._util.checks import check_keywords, given_of
from oxillama._util.pickling import OpenedOnce, frozen
from oxillama.config import EngineConfig, field_names
from oxillama.errors import ConfigError
from oxillama.store.resolve import kept_path

if TYPE_CHECKING:
    from oxillama.engine import Engine

__all__ = ["OPENED", "EngineSource", "with_absolute_paths"]

OPENED: OpenedOnce[Any] = OpenedOnce()


class EngineSource:
    """Source of a mapper's engine: settings, or an engine that is open already.

    Its pickle holds settings with absolute paths, or the engine's own pickle. A forked child goes on with the engine
    of its parent, whose memory it shares.
    """

    def __init__(self, model: Any, fields: Mapping[str, Any] | None) -> None:
        """`model`: a path, None for the shipped model, or an `Engine`. `fields`: of `EngineConfig`.

        Raises ConfigError, TypeError for an unknown field. The file needn't be there yet.
        """
        if fields is not None and not isinstance(fields, Mapping):
            raise ConfigError(f"engine must be a mapping of EngineConfig's fields, not {type(fields).__name__}")
        given = given_of(fields or {})
        if "model_path" in given:
            raise ConfigError("engine must leave model_path out: the model is the mapper's first argument")
        check_keywords("engine", given, field_names(EngineConfig))
        self._engine: Engine | None = None
        self._config: EngineConfig | None = None
        if isinstance(model, bytes | bytearray | memoryview):
            raise ConfigError("model must be a path, so that each process can open it, not the bytes of a file")
        if _is_engine(model):
            if given:
                raise ConfigError(f"engine must be left out where the model is an Engine, which has its own: {given}")
            self._engine = model
        else:
            given = with_absolute_paths(given)
            place = kept_path(model) if isinstance(model, str | os.PathLike) else model
            self._config = EngineConfig(model_path=place, **given)

    @property
    def engine(self) -> Engine:
        """The engine, opened if this process has none. Raises what `oxillama.load` raises."""
        config, engine = self._config, self._engine
        if config is not None and (engine is None or engine.closed):
            from oxillama.engine import Engine

            values = config.__reduce__()[1][1]
            engine = OPENED.get(frozen(values), lambda: Engine(config), lambda one: not one.closed)
            self._engine = engine
        assert engine is not None  # it is one of the two
        return engine

    def close(self) -> None:
        """Closes an engine that was opened here, for all mappers of its settings; the next call opens it again."""
        engine = self._engine
        if self._config is not None and engine is not None:
            self._engine = None
            OPENED.forget(engine)
            engine.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | ({"_engine": None} if self._config is not None else {})

    def __repr__(self) -> str:
        if self._config is None:
            return repr(self._engine)
        return "the shipped model" if self._config.model_path is None else repr(self._config.model_path)


def with_absolute_paths(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `EngineConfig` whose paths mean the same files in processes with another working folder."""
    found = dict(fields)
    for name in ("tokenizer_path", "packed"):
        if isinstance(found.get(name), str | os.PathLike):
            found[name] = os.path.abspath(found[name])
    return found


def _is_engine(model: Any) -> bool:
    """Without importing engines: where none is imported, there is no object of theirs."""

    module = sys.modules.get("oxillama.engine.engine")
    return module is not None and isinstance(model, module.Engine)
