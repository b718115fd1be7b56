"""Serve command, `oxillama serve`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import oxillama
from oxillama._util.blas import import_numpy
from oxillama._util.checks import check_int, nearest
from oxillama._util.settings import settings_of
from oxillama.cli.files import model_file, named_file, named_model
from oxillama.cli.flags import flag_of
from oxillama.cli.options import NAMED, engine_options
from oxillama.cli.served_files import (
    DraftLoader,
    ModelLoader,
    check_adapter,
    check_draft,
    check_file,
    check_places,
    files_of,
)
from oxillama.cli.statuses import FailedCheckError
from oxillama.cli.values import with_sizes
from oxillama.config import EngineConfig, field_names
from oxillama.server.config import ENVIRONMENT, ServerConfig, from_environment, from_file, from_texts, shown_default
from oxillama.store.names import is_path
from oxillama.text_settings import MAX_SPECULATIVE

if TYPE_CHECKING:
    from oxillama.server.model_folder import ModelFolder
    from oxillama.server.serve import ServerProcess

__all__ = ["add_server_options", "serve"]


# Flags of a model, by the keys that a file has for them.
MODEL_FLAGS = {
    "context_size": "--context-size", "num_threads": "--threads", "kv_type": "--kv-type", "kv_budget": "--kv-budget",
    "prefill_chunk_size": "--chunk-size", "repack": "--no-repack", "packed": "--packed",
    "portable": "--portable", "offload": "--offload", "rope": "--rope", "overrides": "--override", "lora": "--lora",
}  # fmt: skip
DEFAULTS = {name: one.default for name, one in settings_of(EngineConfig).items()}


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """A flag for each field of `ServerConfig`."""
    group = parser.add_argument_group("server")
    group.description = "Also as OXILLAMA_SERVE_NAME in the environment, and in [server] of a file."
    group.add_argument("--config", metavar="FILE", help="TOML with [server], and [[model]] for each model")
    group.add_argument("--draft", metavar="FILE", help="a smaller model with the same tokens; or lookup, or grammar")
    group.add_argument("--num-speculative", type=int, metavar="N", help="draft tokens at a time, at most; default 4")
    group.add_argument(
        "--check-config", action="store_true", help="print settings and models, open what they name, and serve nothing"
    )
    for one in settings_of(ServerConfig).values():
        text, default = one.text.replace("%", "%%"), one.default
        name = one.name.replace("_", "-")
        if one.kind == "bool":
            flag = f"--no-{name}" if default else f"--{name}"
            shown = f"without {text}" if default else text
            group.add_argument(flag, dest=f"server_{one.name}", action="store_const", const=not default, help=shown)
        elif one.item is not None:
            group.add_argument(
                f"--{name}", dest=f"server_{one.name}", action="append", metavar=one.metavar,
                help=f"{text}; may be repeated",
            )  # fmt: skip
        else:
            metavar = one.metavar or ("SIZE" if one.size else "X")
            known = "; default " + shown_default(default) if default is not None else ""
            group.add_argument(f"--{name}", dest=f"server_{one.name}", metavar=metavar, help=text + known)


def serve(args: argparse.Namespace) -> int:
    """Serves models until a signal ends it. It listens before it imports what answers: that takes longest."""
    if args.check_config:
        return _checked(args)
    from oxillama.server import sockets

    with _named_as_given(args):
        config, described = _read(args)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # so that the library lets other threads run meanwhile
    with _signals_received() as received, sockets.listening(config) as made:
        process = _server_process()
        from oxillama.server import app, log_output, memory, models, service

        with _named_as_given(args):
            served = {fields["id"]: models.ServedModel(**fields) for fields in described}
            application = app.App(service.Service(models.served(served, config, _folder(args, config)), config))
        there = application.service.models.all.values()
        memory.check_memory({model.id: model.weights for model in there if model.at_start})
        with log_output.unblocked(), log_output.log_to(sys.stderr, config.log_level, config.log_content):
            process(application, config, received).serve_on(made)
    return 0


@contextlib.contextmanager
def _named_as_given(args: argparse.Namespace) -> Iterator[None]:
    """Errors inside name settings as they were given: by flags, variables, or keys of the file."""
    try:
        yield
    except oxillama.ConfigError as error:
        text = str(error)
        shown = with_sources(text, args)
        if shown == text or type(error) is not oxillama.ConfigError:
            raise
        raise oxillama.ConfigError(shown) from error


def with_sources(text: str, args: argparse.Namespace) -> str:
    """A message with flags and variables for the names of settings that were given by them. A setting that was not
    given is named by its flag, unless there is a file; one that is a word as others are, only at the beginning."""
    sources = {}
    for name in settings_of(ServerConfig):
        flag, variable = f"--{name.replace('_', '-')}", f"{ENVIRONMENT}{name.upper()}"
        if getattr(args, f"server_{name}", None) is not None:
            sources[name] = flag
        elif variable in os.environ:
            sources[name] = variable
        elif not args.config:
            sources[name] = flag
    sources["config"] = "--config"
    first = re.match(r"[a-z]+(?![\w=.\[])", text)
    if first and first[0] in sources:
        text = sources[first[0]] + text[first.end() :]
    return re.sub(r"(?<![\w./'\"\[-])[a-z]+(?:_[a-z]+)+(?![\w./'\"=-])", lambda m: sources.get(m[0], m[0]), text)


def _read(args: argparse.Namespace) -> tuple[ServerConfig, list[dict[str, Any]]]:
    """Settings, and models as fields of `ServedModel`: checked as far as it needs no import that takes long."""
    from oxillama.server.auth import keys_of
    from oxillama.server.sockets import check_exposure

    settings, models = read_settings(args)
    config = ServerConfig(**settings)
    users, _ = keys_of(config)
    check_exposure(config, bool(users))
    check_places(config)
    if config.models_dir is not None and not models and args.model is None:
        for name in ("draft", "num_speculative", "lora", "lora_scaled", "packed"):
            if getattr(args, name) and getattr(args, name) is not True:
                raise oxillama.ConfigError(f"{flag_of(name)} is for one model: give -m, or [[model]] in a file")
        if config.served_model_name:
            raise oxillama.ConfigError(
                "served_model_name is for one model: those of a folder have alias, as NAME=MODEL"
            )
        return config, []  # those of the folder
    return config, _served(args, models)


def _checked(args: argparse.Namespace) -> int:
    """Prints settings, models and what they name, all of it opened. Raises FailedCheckError if something is wrong."""
    try:
        with _named_as_given(args):
            config, described = _read(args)
            _server_process()
            from oxillama.cli.serve_check import report

            found = report(config, described, _folder(args, config))
    except (oxillama.OxiLlamaError, OSError) as error:
        raise FailedCheckError(str(error)) from error
    print(json.dumps(found, indent=2, default=str))
    return 0


@contextlib.contextmanager
def _signals_received() -> Iterator[list[int]]:
    """Signals that come before the event loop, which handles them once clients that connected are known to it; the
    second one that asks for the end ends the process at once."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # its program ends the server
        yield received
        return

    def note(number: int, frame: object) -> None:
        if number != signal.SIGHUP and any(one != signal.SIGHUP for one in received):
            raise SystemExit(0)
        received.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _server_process() -> type[ServerProcess]:
    """Imports what answers requests. Raises ConfigError where the extra `server` isn't installed."""
    import_numpy()
    try:
        from oxillama.server.serve import ServerProcess
    except ImportError as error:
        text = f"`oxillama serve` needs {error.name}: pip install '.[server]' from a checkout"
        raise oxillama.ConfigError(text) from None
    return ServerProcess


def read_settings(args: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Fields of `ServerConfig`, of flags, the environment and the file in this order; and the file's models."""
    given = {n.removeprefix("server_"): v for n, v in vars(args).items() if n.startswith("server_") and v is not None}
    flags = from_texts(given, lambda name: f"--{name.replace('_', '-')}")
    file, models = from_file(os.path.expanduser(args.config)) if args.config else ({}, [])
    if "api_key" in flags:
        print("oxillama: --api-key is seen by all users of this machine: --api-key-file is not", file=sys.stderr)
    return file | from_environment() | flags, models


def _folder(args: argparse.Namespace, config: ServerConfig) -> ModelFolder | None:
    """The folder of models, which are loaded with the options of the command line."""
    if config.models_dir is None:
        return None
    from oxillama.server.model_folder import ModelFolder

    return ModelFolder(config, engine_options(args))


def _served(args: argparse.Namespace, tables: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The models of the command line, or of the file, as fields of `ServedModel`, which is imported later."""
    if not tables:
        options = engine_options(args)
        path = options["model_path"]
        check_file("--model", path)
        name = "oxillama-default" if path is None else served_as(args.model, path)
        drafts = _drafts("--draft", args.draft, "--num-speculative", args.num_speculative, options)
        load = ModelLoader(options, _adapters(args))
        return [{"id": name, "path": path, "load": load, "files": files_of(load, drafts.get("load_draft")), **drafts}]
    if args.draft is not None or args.num_speculative is not None:
        raise oxillama.ConfigError("--draft and --num-speculative are not for models of a file: give them there")
    if args.model is not None:
        raise oxillama.ConfigError("--model and [[model]] of the file are both given: give one of them")
    _check_no_flags(args)
    found = [_of_table(i, table) for i, table in enumerate(tables)]
    places: dict[str, int] = {}
    for i, one in enumerate(found):
        if (before := places.setdefault(one["id"], i)) != i:
            raise oxillama.ConfigError(f"model[{i}].id is {one['id']!r:.60}, as model[{before}].id: give another one")
    return found


def served_as(given: str, path: str) -> str:
    """The id of a model: the name of its file, or the one that it was given by where that has no name of its own."""
    stem = _stem(path)
    return given if stem.startswith("sha256-") and not is_path(given) else stem


def _check_no_flags(args: argparse.Namespace) -> None:
    """Raises ConfigError for flags of a model, which those of a file have for themselves."""
    given = engine_options(args) | {"lora": args.lora or args.lora_scaled or None}
    for name, flag in MODEL_FLAGS.items():
        if given[name] is not None and given[name] != DEFAULTS.get(name):
            raise oxillama.ConfigError(f"{flag} is not for models of a file: give {name} there")


def _adapters(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Names and files of adapters: NAME=FILE, or a file whose name it has. Raises ConfigError."""
    if args.lora_scaled:
        raise oxillama.ConfigError("--lora-scaled is not for serve: requests give the scale, as lora=[{name, scale}]")
    found = []
    for given in args.lora:
        name, equals, path = given.partition("=")
        file = named_file("--lora", path if equals else given)
        check_adapter("--lora", file)
        found.append((name if equals else _stem(file), file))
    return found


def _stem(path: str) -> str:
    return os.path.basename(os.path.normpath(path)).removesuffix(".gguf")


_OWN = ("id", "path", "aliases", "load", "lora", "draft", "num_speculative")


def _drafts(name: str, given: Any, place: str, number: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Fields of `ServedModel` for a draft, and the bytes of all weights. Raises ConfigError, which names the place."""
    from oxillama.server.memory import weight_bytes

    path = options["model_path"]
    weights = 0 if path is None or options.get("offload") is not None else weight_bytes(path)
    if given is None:
        if number is not None:
            raise oxillama.ConfigError(f"{place} is given without {name}, of whose tokens it is the number")
        return {"weights": weights}
    if not isinstance(given, str):
        raise oxillama.ConfigError(f"{name} must be a file, or one of {', '.join(NAMED)}, not {given!r:.60}")
    if number is not None:
        check_int(place, number, 0, MAX_SPECULATIVE)
    if given in NAMED:
        return {"weights": weights, "draft": given, "num_speculative": number}
    file = named_model(name, given)
    check_file(name, file)
    check_draft(name, file, path)
    draft = DraftLoader(file, options.get("num_threads"))
    return {"weights": weights + weight_bytes(file), "load_draft": draft, "num_speculative": number}


def _of_table(i: int, table: dict[str, Any]) -> dict[str, Any]:
    """A model of the file's table [[model]]. Raises ConfigError, which names the place."""
    known = (*_OWN, *(name for name in field_names(EngineConfig) if name != "model_path"))
    for name in table:
        if name not in known:
            near = nearest(name, known)
            raise oxillama.ConfigError(
                f"model[{i}].{name} is not known" + (f"; did you mean {near!r}?" if near else "")
            )
    for name in ("id", "path"):
        if not isinstance(table.get(name), str | None):
            raise oxillama.ConfigError(f"model[{i}].{name} must be a text, not {table[name]!r:.60}")
        if table.get(name) == "":
            raise oxillama.ConfigError(f"model[{i}].{name} is empty: give a value, or leave it out")
    path = model_file(f"model[{i}].path", table.get("path"))
    check_file(f"model[{i}].path", path)
    aliases, adapters, load = table.get("aliases", []), table.get("lora", {}), table.get("load", "start")
    if not isinstance(aliases, list) or not all(isinstance(one, str) for one in aliases):
        raise oxillama.ConfigError(f"model[{i}].aliases must be a list of names, not {aliases!r:.60}")
    if not isinstance(adapters, dict) or not all(isinstance(one, str) for one in adapters.values()):
        raise oxillama.ConfigError(f"model[{i}].lora must map names to files, not {adapters!r:.60}")
    if load not in ("start", "demand"):
        raise oxillama.ConfigError(f"model[{i}].load must be start or demand, not {load!r:.60}")
    given = with_sizes(f"model[{i}]", {name: value for name, value in table.items() if name not in _OWN})
    options = {"model_path": path} | _with_files(i, given)
    EngineConfig(**options)  # raises for wrong ones before anything is loaded
    files = [(name, named_file(f"model[{i}].lora", file)) for name, file in adapters.items()]
    for _, file in files:
        check_adapter(f"model[{i}].lora", file)
    name = table.get("id") or ("oxillama-default" if path is None else served_as(table["path"], path))
    draft, number = f"model[{i}].draft", f"model[{i}].num_speculative"
    drafts = _drafts(draft, table.get("draft"), number, table.get("num_speculative"), options)
    loader = ModelLoader(options, files)
    own = {"id": name, "path": path, "load": loader, "files": files_of(loader, drafts.get("load_draft"))}
    return own | {"aliases": tuple(aliases), "at_start": load == "start"} | drafts


def _with_files(i: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of a model with the paths of the files that they name, which are there."""
    found = dict(fields)
    if isinstance(found.get("tokenizer_path"), str):
        found["tokenizer_path"] = named_model(f"model[{i}].tokenizer_path", found["tokenizer_path"])
        check_file(f"model[{i}].tokenizer_path", found["tokenizer_path"])
    if isinstance(found.get("packed"), str):
        found["packed"] = named_file(f"model[{i}].packed", found["packed"])
    return found
