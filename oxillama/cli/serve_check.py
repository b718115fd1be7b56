"""Check of a server's settings, `oxillama serve --check-config`: all files that they name are opened and read as far as
loading would, before it takes memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import oxillama
from oxillama import gguf
from oxillama.cli.served_files import DraftLoader, ModelLoader
from oxillama.config import EngineConfig, RopeConfig
from oxillama.core.loading import choose_context, own_tokenizer, read_tokenizer, shipped_model
from oxillama.lora.adapter import Lora
from oxillama.models.packed.file import PackedFile
from oxillama.models.registry import read_model_spec
from oxillama.server.app import App
from oxillama.server.auth import keys_of
from oxillama.server.config import ServerConfig
from oxillama.server.memory import check_memory
from oxillama.server.model_folder import FolderLoader, ModelFolder
from oxillama.server.models import Models, ServedModel
from oxillama.server.service import Service
from oxillama.server.sockets import check_place

__all__ = ["report"]


def report(config: ServerConfig, described: list[dict[str, Any]], folder: ModelFolder | None = None) -> dict[str, Any]:
    """Settings, models with what their files hold, and what the settings name. described: fields of `ServedModel`.
    folder: whose models are served beside these.

    Raises ConfigError, which names the setting and its file, for what would keep the server from serving; LoadError and
    its children for a model's file.
    """
    of_folder = [] if folder is None else folder.described()
    models = [*map(_model, described), *map(_model_or_fault, of_folder)]
    described = [*described, *of_folder]
    served = [ServedModel(**one) for one in described]
    service = Service(Models(served, config) if served else Models([], config, folder), config)
    App(service)
    service.residence.close()
    check_place(config)
    check_memory({one.id: one.weights for one in served if one.at_start})
    n_models = 0 if folder is None else len(folder.entries)
    server = {name: value for name, value in asdict(config).items() if name != "api_key"}
    return {"server": server, "models": models, "files": _files(config, service.models.template, n_models)}


def _files(config: ServerConfig, template: str | None, n_models: int) -> dict[str, str]:
    """Descriptions of the files and folders that settings name, by the names of the settings."""
    users, admins = keys_of(config)
    found = {
        "api_key_file": f"{len(users) - bool(config.api_key)} keys",
        "admin_key_file": f"{len(admins)} keys",
        "chat_template": f"{len(template or '')} characters",
        "tls_cert": "fits its key",
        "tls_key": "fits its certificate",
    }
    if config.models_dir is not None:
        found["models_dir"] = f"{n_models} models"
    if config.lora_dir is not None:
        found["lora_dir"] = f"{len(os.listdir(config.lora_dir))} names"
    return {name: text for name, text in found.items() if getattr(config, name) is not None}


def _model(one: Mapping[str, Any]) -> dict[str, Any]:
    """A model, as its file says. Raises LoadError and its children, ConfigError."""
    loader = one["load"]
    assert isinstance(loader, ModelLoader | FolderLoader)
    options = dict(loader.options) | ({"model_path": loader.path} if isinstance(loader, FolderLoader) else {})
    config = EngineConfig(**options)
    place = f"model {one['id']!r:.60}"
    try:
        source = shipped_model() if config.model_path is None else config.model_path
        with gguf.open(source, overrides=config.overrides) as file:
            facts = _facts(file, config)
            given_adapters = loader.adapters if isinstance(loader, ModelLoader) else ()
            adapters = {name: _adapter(path, file) for name, path in given_adapters}
        if not isinstance(config.packed, bool):
            PackedFile(Path(config.packed))
    except oxillama.OxiLlamaError as error:
        raise oxillama.ConfigError(f"{place}: {error}") from None
    given = {one.name: _plain(getattr(config, one.name)) for one in fields(config)}
    options = {name: value for name, value in given.items() if name != "model_path" and value is not None}
    drafted = one.get("load_draft")
    draft = drafted.path if isinstance(drafted, DraftLoader) else one.get("draft")
    return {
        "id": one["id"], "path": one["path"], "aliases": list(one.get("aliases", ())),
        "load": "start" if one.get("at_start", True) else "demand", **facts, "lora": adapters, "draft": draft,
        "num_speculative": one.get("num_speculative"), "options": options,
    }  # fmt: skip


def _model_or_fault(one: Mapping[str, Any]) -> dict[str, Any]:
    """A model of a folder; one that can't be loaded keeps no server from serving the others."""
    try:
        return _model(one)
    except oxillama.ConfigError as error:
        return {"id": one["id"], "path": one["path"], "fault": str(error)}


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return dict(value) if isinstance(value, Mapping) else value


def _facts(file: gguf.GGUFFile, config: EngineConfig) -> dict[str, Any]:
    """Facts of a model's file, and the size of the context. Raises LoadError for what can't be loaded."""
    if isinstance(config.rope, RopeConfig):
        file.override(config.rope.metadata(file.metadata.arch))
    spec = read_model_spec(file)
    tokenizer = own_tokenizer(file) if config.tokenizer_path is None else read_tokenizer(config.tokenizer_path)[0]
    return {
        "architecture": spec.arch, "name": spec.name, "bytes": sum(t.nbytes for t in file.tensors.values()),
        "context_size": choose_context(spec, config), "vocabulary": tokenizer.n_vocab,
    }  # fmt: skip


def _adapter(path: str, file: gguf.GGUFFile) -> dict[str, Any]:
    """Facts of an adapter. Raises LoadError and its children for one that can't be read, or is for another model."""
    lora = Lora.load(path)
    lora.changes(read_model_spec(file))
    return {"path": path, "rank": lora.rank, "tensors": len(lora.names)}
