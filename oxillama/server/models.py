"""Models that are served: engines by name, their adapters, and the defaults of their requests."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from oxillama._util.checks import nearest
from oxillama._util.text_files import read_setting
from oxillama._util.threads import in_thread
from oxillama.chat.calls import read_json
from oxillama.chat.template import ChatTemplate
from oxillama.chat.tool_display import answer_format
from oxillama.config import SamplerConfig, field_names
from oxillama.core.chat import template_for
from oxillama.engine.async_engine import AsyncEngine
from oxillama.engine.engine import Engine
from oxillama.errors import ChatTemplateError, ConfigError, ModelFileError, OxiLlamaError, ThreadStartError
from oxillama.gguf.mixes import FILE_TYPES
from oxillama.sampling import SamplerChain
from oxillama.sampling.chain import make_chain
from oxillama.server.config import ServerConfig
from oxillama.server.errors import ApiError
from oxillama.server.json_pieces import Body
from oxillama.server.loop_errors import Repeats
from oxillama.server.memory import is_short_of
from oxillama.server.model_facts import Facts
from oxillama.server.model_files import Stamp, file_fault, is_passing, stamp_of, without_paths
from oxillama.speculative.draft_model import DraftModel, check_same_vocabulary

__all__ = ["OLLAMA", "PLAIN", "Chosen", "Loader", "Models", "ServedModel", "served", "slug"]

log = logging.getLogger("oxillama")

POLL = 0.02  # seconds between two looks whether a model has become idle

State = Literal["loading", "ready", "failed", "idle"]
Loader = Callable[[], Engine]

# The defaults of OpenAI's API, and of vLLM: nothing is cut off.
PLAIN = SamplerConfig(temperature=1.0, top_k=0, top_p=1.0)
# Those of Ollama's API.
OLLAMA = SamplerConfig(temperature=0.8, top_k=40, top_p=0.9, repetition_penalty=1.0, repetition_penalty_window=64)


@dataclass
class ServedModel:
    """A model under its name.

    load: what gives its engine; None for one that was loaded before. state: "idle" before it is needed. created: Unix
    seconds. weights: bytes that loading takes. path: of its file, if it is known. files: those
    that loading reads beside it: further parts, adapters, a draft. draft, num_speculative: of requests
    that name none; load_draft: what gives the draft, where it is a model. chain, ollama_chain: the sampling of requests
    that give none, and of those of Ollama's API. keep: seconds that it stays in memory after its last request, where a
    request said so. fault: what became of a file while it was in use. failed_with: files' stamps when loading failed.
    facts: as Ollama's API tells them, once they were asked for.
    """

    id: str
    engine: AsyncEngine | None = None
    load: Loader | None = None
    weights: int = 0
    path: str | None = None
    files: tuple[str, ...] = ()
    draft: Literal["lookup", "grammar"] | DraftModel | None = None
    load_draft: Callable[[], DraftModel] | None = None
    num_speculative: int | None = None
    aliases: tuple[str, ...] = ()
    at_start: bool = True
    state: State = "idle"
    created: int = field(default_factory=lambda: int(time.time()))
    used_at: float = 0.0
    n_open: int = 0
    chain: SamplerChain | None = None
    ollama_chain: SamplerChain | None = None
    keep: float | None = None
    fault: ModelFileError | None = None
    failed_with: tuple[Stamp | None, ...] = ()
    facts: Facts | None = None
    fingerprint: str = ""
    capabilities: list[str] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def stamps(self) -> tuple[Stamp | None, ...]:
        """Stamps of its files, one of which any change of them changes."""
        return tuple(stamp_of(path) for path in (self.path, *self.files))

    @property
    def ready(self) -> AsyncEngine:
        """The engine of a model that is loaded. Raises ApiError for one that was lost since the request was let in."""
        if self.engine is None:
            raise unusable(self)
        return self.engine


class Known(NamedTuple):
    """Facts of a model's engine that requests need; `ServedModel` says what each means."""

    chain: SamplerChain
    ollama_chain: SamplerChain
    fingerprint: str
    capabilities: list[str]


@dataclass(frozen=True)
class Chosen:
    """Model that a request's `model` names, and maybe an adapter of it. name: as the request has it."""

    model: ServedModel
    adapter: str | None
    name: str

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """The model stays in memory. To be entered as soon as `Models.use` has given it, before anything is awaited."""
        self.model.n_open += 1
        try:
            yield
        finally:
            self.model.n_open -= 1
            self.model.used_at = time.monotonic()


class Models:
    """The models of one server, in order: the first answers requests that name none."""

    def __init__(self, models: list[ServedModel], config: ServerConfig) -> None:
        if not models:
            raise ConfigError("engines is empty: give at least one model")
        self._config = config
        self.template = read_template(config.chat_template)
        read_defaults(config)  # raises before anything is loaded
        self._repeats = Repeats()
        self._room = asyncio.Lock()  # of the one that makes room and is loaded into it
        self._arriving: dict[str, asyncio.Task[None]] = {}  # of models that requests wait for
        self._leaving: set[asyncio.Task[None]] = set()  # of engines whose files were changed
        self.all = {model.id: model for model in models}
        if len(self.all) < len(models):
            raise ConfigError("engines must have different names")
        check_aliases(models)
        self.first = models[0]
        for model in models:
            if model.engine is not None:
                self._loaded(model, model.engine, self._known(model.engine.engine))

    async def load_all(self) -> None:
        """Loads those that are loaded at start, one after another. A failure is kept with its model."""
        for model in self.all.values():
            if model.at_start and model.state == "idle":
                await self.load(model)

    async def load(self, model: ServedModel) -> None:
        """Loads a model in another thread, unless it is loaded."""
        async with model.lock:
            if model.state in ("ready", "failed") or model.load is None:
                return
            model.state, stamps = "loading", model.stamps
            try:
                engine, known, draft = await in_thread(self._load, model.load, model.load_draft)
                model.draft = draft or model.draft
                self._loaded(model, AsyncEngine(engine), known)
            except (OxiLlamaError, OSError, MemoryError) as error:
                model.state, model.failed_with = "failed", stamps
                again = is_passing(error) and self._comes_back(model) and (model.used_at > 0 or not model.at_start)
                if not again or self._repeats.is_new(model.id) is not None:
                    remedy = " (the next request tries again)" if again else ""
                    log.error("the model %s can't be loaded: %s%s", model.id, error or type(error).__name__, remedy)
                if again:
                    model.state = "idle"
                    raise short_of(model, error) from error

    def _load(
        self, load: Loader, load_draft: Callable[[], DraftModel] | None
    ) -> tuple[Engine, Known, DraftModel | None]:
        """An engine, what requests need to know of it, and its draft: all of them or none."""
        engine, draft = loaded_with_draft(load, load_draft)
        try:
            return engine, self._known(engine), draft
        except BaseException:
            engine.close()
            if draft is not None:
                draft.close()
            raise

    def _known(self, engine: Engine) -> Known:
        """Finds what requests need to know of an engine: its template is looked at for it, which takes a while."""
        return Known(
            default_chain(engine, self._config, PLAIN),
            default_chain(engine, self._config, OLLAMA),
            fingerprint_of(engine),
            capabilities(engine, self._config.tool_format, self.template),
        )

    @staticmethod
    def _loaded(model: ServedModel, engine: AsyncEngine, known: Known) -> None:
        model.chain, model.ollama_chain, model.fingerprint, model.capabilities = known
        model.engine, model.state, model.used_at = engine, "ready", time.monotonic()
        model.fault = None
        model.facts = model.keep = None  # of the file as it was, and of requests before it left

    async def unload(self, model: ServedModel) -> None:
        """Takes an idle model out of memory; one without `load`, or in use, stays."""
        async with model.lock:
            if model.engine is None or model.load is None or model.n_open:
                return
            model.state = "idle"
            await self._close(model)

    async def close(self) -> None:
        """Closes the engines that were loaded here."""
        for model in self.all.values():
            if model.engine is not None and model.load is not None:
                await self._close(model)
        await asyncio.gather(*self._leaving)

    @staticmethod
    async def _close(model: ServedModel) -> None:
        """Takes the engine away at once, and closes it."""
        engine, model.engine, draft = model.ready, None, model.draft
        if isinstance(draft, DraftModel):
            model.draft = None
        await engine.close()
        if isinstance(draft, DraftModel):  # after the engine, whose requests use it until they end
            draft.close()

    # ---- files that change under the server

    def look_at_files(self) -> None:
        """Notes models whose files were cut or written since they were loaded: they can't be used any more."""
        for model in self.all.values():
            self._try_again(model)
            if model.state == "ready" and model.engine is not None:
                fault = file_fault(model.engine.engine, model.draft)
                if fault is not None:
                    self.lose(model, fault)

    def note_failure(self, name: str, error: BaseException | None) -> None:
        """Notes a request that failed since the model of this name has no use for requests any more."""
        self.look_at_files()
        if isinstance(error, ModelFileError):  # a disk's fault, which nothing else tells of
            with contextlib.suppress(ApiError):
                self.lose(self.find(name).model, error)

    def lose(self, model: ServedModel, fault: ModelFileError) -> None:
        """A model leaves memory whose file isn't the one that was loaded: one that loads on demand is loaded anew at
        the next request, any other has failed."""
        if model.state != "ready" or model.engine is None:
            return
        again = self._comes_back(model)
        model.state, model.fault, model.facts = "idle" if again else "failed", fault, None
        remedy = "the next request loads it again" if again else "it answers no more until it is loaded again"
        log.error("the model %s can't be used any more: %s %s", model.id, fault, f"({remedy})")
        if model.load is not None:
            task = asyncio.ensure_future(self._close(model))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    def _comes_back(self, model: ServedModel) -> bool:
        """Whether a request loads a model that isn't in memory."""
        return model.load is not None and (not model.at_start or self._config.idle_unload > 0)

    def _try_again(self, model: ServedModel) -> None:
        """The next request loads a model that could not be loaded, if one of its files is another one now."""
        if model.state == "failed" and self._comes_back(model) and model.failed_with != model.stamps:
            model.state = "idle"

    def without_paths(self, text: str) -> str:
        """A message for clients, which learn nothing of the server's folders."""
        config = self._config
        paths = [config.lora_dir and os.path.join(os.path.expanduser(config.lora_dir), ""), config.chat_template]
        for model in self.all.values():
            paths += [model.path, *model.files]
            identity = None if model.engine is None else model.engine.engine.context.snapshots.identity
            paths.append(None if identity is None else identity.path)
        return without_paths(text, paths)

    @property
    def is_ready(self) -> bool:
        """Whether every model that loads at start is loaded, or was, and left memory since it idled; and none that was
        lost can't be loaded again."""
        if any(model.state == "failed" and model.fault is not None for model in self.all.values()):
            return False
        started = (model for model in self.all.values() if model.at_start)
        return all(model.state == "ready" or (model.state == "idle" and model.used_at > 0) for model in started)

    @property
    def all_failed(self) -> bool:
        """Whether no model could be loaded, so that none can ever answer."""
        return all(model.state == "failed" and model.fault is None for model in self.all.values())

    def find(self, name: str | None) -> Chosen:
        """Finds the model of a request's `model`. Raises ApiError for an unknown name."""
        if not name:
            return Chosen(self.first, None, self.first.id)
        for model in self.all.values():
            if name == model.id or name in model.aliases:
                return Chosen(model, None, name)
        for model in self.all.values():
            adapter = name.removeprefix(f"{model.id}:")
            known = model.engine.engine.loras if model.engine is not None else ()
            if adapter in known or (model.engine is None and adapter != name):  # of a model that isn't loaded yet
                return Chosen(model, adapter, name)
        if "*" in self.first.aliases:
            return Chosen(self.first, None, name)
        names = list(self.names())
        near = nearest(name, names) if len(name) <= 64 else None
        remedy = f"; did you mean {near!r}?" if near else "."
        text = f"the model {name!r:.80} does not exist{remedy} There are: {', '.join(names):.400}"
        raise ApiError(404, "model_not_found", text, "model")

    async def use(self, name: str | None) -> Chosen:
        """`find`, of a model that is loaded, which one that loads on demand is then. Raises ApiError otherwise."""
        chosen = self.find(name)
        model = chosen.model
        self._try_again(model)
        if model.state in ("idle", "loading") and model.load is not None:
            model.n_open += 1  # so that it isn't unloaded for another one before it has answered
            try:
                async with asyncio.timeout(self._config.queue_timeout):
                    await asyncio.shield(self._arrival(model))
            except TimeoutError:
                pass
            finally:
                model.n_open -= 1
        if model.state != "ready":
            raise unusable(model)
        model.used_at = time.monotonic()
        return self.find(name)  # an adapter is known now

    def _arrival(self, model: ServedModel) -> asyncio.Task[None]:
        """Task, one for all requests that wait for it, that makes room for a model and loads it."""
        task = self._arriving.get(model.id)
        if task is None:
            task = self._arriving[model.id] = asyncio.ensure_future(self._arrive(model))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # if no request waits any more
            task.add_done_callback(lambda _: self._arriving.pop(model.id, None))
        return task

    async def _arrive(self, model: ServedModel) -> None:
        if model.state == "loading":
            await self.load(model)
            return
        async with self._room:
            if model.state == "idle" and await self._make_room(model):
                await self.load(model)

    async def _make_room(self, wanted: ServedModel) -> bool:
        """Unloads the least recently used idle models, so that there are no more than `models_max`, and while memory
        is short of what the one that is wanted takes. Whether there is room before no request waits any more."""
        most = self._config.models_max
        while wanted.n_open:
            there = [m for m in self.all.values() if m is not wanted and (m.engine is not None or m.state == "loading")]
            n = len(there)
            for model in sorted(there, key=lambda m: m.used_at):
                if not (most and n >= most) and not is_short_of(wanted.weights):
                    return True
                if model.engine is not None:
                    await self.unload(model)
                    n -= model.engine is None
            if not (most and n >= most):
                return True
            await asyncio.sleep(POLL)
        return False

    async def unload_idle(self) -> None:
        """Unloads models that no request has used for `idle_unload` seconds, but for those of which one said how long
        they are to stay."""
        since = time.monotonic() - self._config.idle_unload
        for model in self.all.values():  # `unload` leaves those that are in use or can't be loaded again
            if model.engine is not None and model.keep is None and model.used_at < since:
                await self.unload(model)

    def names(self) -> Iterator[str]:
        """Names under which models and loaded adapters can be asked for, in order."""
        for model in self.all.values():
            yield from (name for name in (model.id, *model.aliases) if name != "*")
            for adapter in model.engine.engine.loras if model.engine is not None else ():
                yield f"{model.id}:{adapter}"

    def listed(self) -> list[Body]:
        """Models and adapters in OpenAI's form, with what they can do under `oxillama`."""
        found = []
        for model in self.all.values():
            found += [described(model, name, None) for name in (model.id, *model.aliases) if name != "*"]
            for adapter in model.engine.engine.loras if model.engine is not None else ():
                found.append(described(model, f"{model.id}:{adapter}", model.id))
        return found


def unusable(model: ServedModel) -> ApiError:
    """Why a model that isn't ready can't answer."""
    code = "engine_failed" if model.state == "failed" else "loading"
    why = {"failed": "can't be loaded", "idle": "waits until another one is idle (--models-max)"}
    text = why.get(model.state, "is being loaded")
    if model.fault is not None and model.state != "loading":
        text = "can't be used: its file was changed, cut off or can't be read any more since it was loaded"
    return ApiError(503, code, f"the model {model.id} {text}", headers={"Retry-After": "5"})


def check_aliases(models: list[ServedModel]) -> None:
    """Raises ConfigError for a name that means two models."""
    whose = {model.id: model for model in models}
    for model in models:
        for alias in model.aliases:
            if (other := whose.setdefault(alias, model)) is not model:
                raise ConfigError(
                    f"the name {alias!r:.60} is that of two models, {other.id!r:.60} and {model.id!r:.60}"
                )


def short_of(model: ServedModel, error: BaseException) -> ApiError:
    """Why a model can't be loaded now, where it may be a moment later."""
    if isinstance(error, ThreadStartError):
        return ApiError(503, "no_thread", "the server can start no thread now", headers={"Retry-After": "1"})
    text = f"the model {model.id} can't be loaded now: the server is short of memory or of open files"
    return ApiError(503, "loading", text, headers={"Retry-After": "5"})


def loaded_with_draft(load: Loader, load_draft: Callable[[], DraftModel] | None) -> tuple[Engine, DraftModel | None]:
    """An engine and its draft, both or none of them. Raises what loading raises, ConfigError for another vocabulary."""
    engine = load()
    draft = None
    try:
        if load_draft is not None:
            draft = load_draft()
            check_same_vocabulary(draft.tokenizer, engine.tokenizer)
    except BaseException:
        engine.close()
        if draft is not None:
            draft.close()
        raise
    return engine, draft


def default_chain(engine: Engine, config: ServerConfig, base: SamplerConfig) -> SamplerChain:
    """The sampling of requests that give none. base: of their API. Raises ConfigError for a `default` that is none."""
    if config.generation_config == "file":
        base = engine.sampling_defaults
    return make_chain(replace(base, **read_defaults(config)), {}, engine.context.factory.default_chain)


def read_defaults(config: ServerConfig) -> Body:
    """Fields of `SamplerConfig` that the settings give. Raises ConfigError for a `default` that is none."""
    given: Body = {}
    for entry in config.default:
        key, equals, value = entry.partition("=")
        if not equals or key not in field_names(SamplerConfig):
            known = nearest(key, field_names(SamplerConfig))
            raise ConfigError(
                f"default must be KEY=VALUE, not {entry!r:.80}" + (f"; did you mean {known}?" if known else "")
            )
        try:
            given[key] = read_json(value)
        except ValueError:
            raise ConfigError(f"default {key} must have a value in JSON, not {value!r:.80}") from None
    replace(PLAIN, **given)  # raises for values out of their ranges
    return given


def fingerprint_of(engine: Engine) -> str:
    """Equal for servers whose answers with a seed are equal to the bit: of version, arithmetic, model and KV."""
    identity = engine.context.snapshots.identity
    parts: list[Any] = [engine.context.snapshots.arithmetic, engine.config.kv_type, engine.n_vocab]
    if identity is not None:
        known = identity.fingerprint
        parts += [known.file_size, known.head_hash.hex(), known.tail_hash.hex(), known.tensor_hash.hex()]
    return "fp_" + hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def capabilities(engine: Engine, tool_format: str | None, template: str | None) -> list[str]:
    """Abilities of a model. tool_format, template: the server's own, in place of the model's."""
    if engine.context.core.encoder:
        found = ["embeddings"]
    else:
        chats = template is not None or engine.tokenizer.chat_template is not None
        found = ["chat"] * chats + ["completions", "embeddings"]
    found += ["rerank"] * (engine.context.classifier is not None)
    calls = "chat" in found and writes_calls(template_for(engine.tokenizer, [{}], template), tool_format)
    return found + ["tools"] * calls


def read_template(path: str | None) -> str | None:
    """The text of a template's file. Raises ConfigError, also for one that is empty or doesn't compile."""
    if path is None:
        return None
    try:
        text = read_setting(path)
        ChatTemplate(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat_template {path} can't be read: {error}") from None
    except ChatTemplateError as error:
        raise ConfigError(f"chat_template {path}: {error}") from None
    if not text:
        raise ConfigError(f"chat_template {path} is empty")
    return text


def writes_calls(template: ChatTemplate, tool_format: str | None) -> bool:
    """Whether it is known how a model with this template calls tools. tool_format: of the server."""
    if tool_format not in (None, "none"):
        return tool_format != "text"
    form = answer_format(template, {"tools": [{}], "tool_format": tool_format})
    return form.calls is not None or form.harmony


def file_facts(engine: Engine) -> Body:
    """Sizes of the model's file: how many values and bytes its tensors have, and the name of their quantisation."""
    identity, number = engine.context.snapshots.identity, engine.metadata.get("general.file_type")
    return {
        "quantization": next((kind.name for kind in FILE_TYPES.values() if kind.id == number), None),
        "parameters": None if identity is None else identity.n_parameters,
        "size": None if identity is None else identity.n_bytes,
    }


def described(model: ServedModel, name: str, parent: str | None) -> Body:
    """One entry of `GET /v1/models`."""
    own: Body = {"state": model.state, "parent": parent}
    if model.engine is not None and model.chain is not None:
        engine = model.engine.engine
        spec, metadata, config = engine.model_config, engine.metadata, model.chain.config
        own |= {
            "context_length": engine.context.factory.room,
            "architecture": spec.arch,
            "name": spec.name,
            "file_type": metadata.get("general.file_type"),
            **file_facts(engine),
            "embedding_size": spec.n_embd,
            "capabilities": model.capabilities,
            "defaults": {n: getattr(config, n) for n in ("temperature", "top_p", "top_k", "min_p")},
        }
    base = {"id": name, "object": "model", "created": model.created, "owned_by": "oxillama", "parent": parent}
    return base | {"max_model_len": own.get("context_length"), "oxillama": own}


def served(engines: Mapping[str, Any] | Any, config: ServerConfig) -> Models:
    """The models of `create_app`'s argument: an engine, or engines by name. Raises ConfigError for anything else."""
    given = engines if isinstance(engines, Mapping) else {"": engines}
    found = []
    for name, engine in given.items():
        if isinstance(engine, ServedModel):
            found.append(engine)
            continue
        if isinstance(engine, Engine):
            engine = AsyncEngine(engine)
        if not isinstance(engine, AsyncEngine):
            raise ConfigError(f"engines must be loaded engines by name, not {type(engine).__name__}")
        found.append(ServedModel(name or slug(engine.engine.model_config.name), engine))
    if found and config.served_model_name:
        found[0].aliases = (*found[0].aliases, *config.served_model_name)
    return Models(found, config)


def slug(name: str) -> str:
    """A model's name as an id."""
    return "-".join(name.lower().split()) or "model"
