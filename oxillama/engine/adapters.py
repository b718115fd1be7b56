"""The engine's methods for low-rank adapters."""

from __future__ import annotations

import os

from oxillama.core.engine_core import EngineCore
from oxillama.lora import Lora, LoraRegistry

__all__ = ["LoraMethods"]


class LoraMethods:
    """Adapters by name, for requests that ask for them (`lora=[(name, scale)]`), and those for requests that don't.

    An adapter that is unloaded or taken away stays with the requests that were made with it, until they end.
    """

    _core: EngineCore
    _loras: LoraRegistry

    def load_lora(self, name: str, path: str | os.PathLike[str] | Lora) -> Lora:
        """Loads an adapter (a GGUF file, a PEFT folder, or what `Lora.load` gave) under a name.

        Raises ConfigError if the name is taken, what `Lora.load` raises, and LoraError, which names the tensor, if it
        doesn't fit the model. The engine is as before then.
        """
        self._core.check_open()
        lora = as_lora(path)
        self._loras.load(name, lora)
        return lora

    def unload_lora(self, name: str) -> None:
        """Forgets a name. Raises ConfigError, which lists the loaded ones, if there is no such."""
        self._loras.unload(name)

    @property
    def loras(self) -> dict[str, Lora]:
        """Loaded adapters by name."""
        return self._loras.named

    def apply_lora(self, path: str | os.PathLike[str] | Lora, scale: float = 1.0) -> Lora:
        """Loads an adapter and pushes it, without a name; raises what `load_lora` and `push_lora` raise."""
        lora = as_lora(path)
        self.push_lora(lora, scale)
        return lora

    def push_lora(self, lora: str | os.PathLike[str] | Lora, scale: float = 1.0) -> None:
        """Adds an adapter to those of all requests to come that give no `lora`: the one of a name, or else of a path.

        Raises ConfigError for a name that is neither, or a scale that is not finite; what `load_lora` raises.
        """
        self._core.check_open()
        if isinstance(lora, os.PathLike) or (
            isinstance(lora, str) and lora not in self._loras.named and os.path.exists(lora)
        ):
            lora = Lora.load(lora)
        self._loras.push(lora, scale)

    def pop_lora(self) -> Lora:
        """Takes away the one that was pushed last. Raises ConfigError if there is none."""
        return self._loras.pop()

    def clear_loras(self) -> None:
        """Takes away all that were pushed."""
        self._loras.clear()

    @property
    def pushed_loras(self) -> list[tuple[Lora, float]]:
        """What requests use that give no `lora`, the last pushed last."""
        return self._loras.pushed


def as_lora(path: str | os.PathLike[str] | Lora) -> Lora:
    return path if isinstance(path, Lora) else Lora.load(path)
