"""HTTP server: OpenAI's, Anthropic's and reranking APIs over engines of one process. Needs the extra `server`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from oxillama.server.config import ServerConfig

if TYPE_CHECKING:
    from oxillama.server.app import App, create_app

__all__ = ["App", "ServerConfig", "create_app"]


def __getattr__(name: str) -> Any:
    """Imports the application when it is asked for: the command line needs the settings alone."""
    if name not in ("App", "create_app"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module("oxillama.server.app"), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("oxillama"):
            raise
        raise ImportError(f"oxillama.server needs {error.name}: pip install '.[server]' from a checkout") from None
