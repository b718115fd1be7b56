"""Files that a server's settings name: looked for before anything is served, and loaded by it later."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import oxillama

if TYPE_CHECKING:
    from oxillama.server.config import ServerConfig

__all__ = ["DraftLoader", "ModelLoader", "check_adapter", "check_draft", "check_file", "check_places", "files_of"]


@dataclass(frozen=True)
class ModelLoader:
    """A function that loads an engine and its adapters. options: of `oxillama.load`; adapters: names and files."""

    options: dict[str, Any]
    adapters: list[tuple[str, str]]

    def __call__(self) -> oxillama.Engine:
        engine = oxillama.load(**self.options)
        try:
            for name, path in self.adapters:
                engine.load_lora(name, path)
        except BaseException:
            engine.close()
            raise
        path = self.options["model_path"]
        logging.getLogger("oxillama").info("loaded %s", path or "the model that ships with oxillama")
        return engine


@dataclass(frozen=True)
class DraftLoader:
    """A function that loads a draft model."""

    path: str
    num_threads: int | None

    def __call__(self) -> oxillama.DraftModel:
        return oxillama.DraftModel(self.path, num_threads=self.num_threads)


ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


def files_of(load: ModelLoader, draft: DraftLoader | None) -> tuple[str, ...]:
    """Files that loading a model reads, beside the one that it is named by. Of an adapter's folder: what is in it."""
    from oxillama.server.memory import parts_of

    path, found = load.options["model_path"], list[str]()
    if path is not None:
        found += [part for part in parts_of(path) if part != path]
    found += [one for name in ("tokenizer_path", "packed") if isinstance(one := load.options.get(name), str)]
    for _, adapter in load.adapters:
        inside = (os.path.join(adapter, name) for name in ADAPTER_FILES) if os.path.isdir(adapter) else ()
        found += [adapter, *inside]
    return (*found, *(() if draft is None else parts_of(draft.path)))


def check_file(name: str, path: str | None) -> None:
    """Raises ModelNotFoundError for a file that isn't there, and ConfigError for one whose header can't be read."""
    if path is None:
        return
    if not os.path.isfile(path):
        raise oxillama.ModelNotFoundError(f"{name} {path}: there is no such file")
    from oxillama.gguf import open as open_gguf

    try:
        open_gguf(path).close()
    except oxillama.OxiLlamaError as error:
        raise oxillama.ConfigError(f"{name}: {error}") from None


def check_adapter(name: str, path: str) -> None:
    """Raises ModelNotFoundError for an adapter that isn't there: a file, or a folder of PEFT's."""
    if not os.path.isfile(path) and not os.path.isdir(path):
        raise oxillama.ModelNotFoundError(f"{name} {path}: there is no such file or folder")


def check_draft(name: str, draft: str, model: str | None) -> None:
    """Raises ConfigError for a draft whose tokens are not the model's, or can't be read: before anything is served."""
    from oxillama.core.loading import shipped_model
    from oxillama.speculative.draft_model import check_same_vocabulary

    try:
        tokenizer = oxillama.Tokenizer.from_gguf(shipped_model() if model is None else model)
        check_same_vocabulary(oxillama.Tokenizer.from_gguf(draft), tokenizer)
    except oxillama.OxiLlamaError as error:
        raise oxillama.ConfigError(f"{name} {draft}: {error}") from None


def check_places(config: ServerConfig) -> None:
    """Raises ConfigError for folders that aren't there."""
    if config.lora_dir is not None and not os.path.isdir(config.lora_dir):
        raise oxillama.ConfigError(f"lora_dir {config.lora_dir}: there is no such folder")
    if config.uds is not None and not os.path.isdir(folder := os.path.dirname(os.path.abspath(config.uds))):
        raise oxillama.ConfigError(f"uds {config.uds}: there is no folder {folder}")
