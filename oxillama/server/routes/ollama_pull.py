"""Pulling and deleting models by Ollama's API, where the operator allows it: in the folder of models alone."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from oxillama._util.threads import in_thread, starting
from oxillama.errors import ConfigError, ModelNotFoundError, OxiLlamaError
from oxillama.server.errors import ApiError, ClientGone, bad_value
from oxillama.server.exchange import Exchange
from oxillama.server.field_types import Values
from oxillama.server.fields_ollama import DELETE, PULL
from oxillama.server.folder_models import is_of_folder, look_at_folder
from oxillama.server.json_pieces import Body
from oxillama.server.model_folder import ModelFolder
from oxillama.server.ollama.names import read_name, served_name
from oxillama.server.routes.ollama_models import check_admin, refused_here
from oxillama.server.sse import EventWriter, JsonLines
from oxillama.store.library import hub_name_of
from oxillama.store.names import HubName, read_hub_name
from oxillama.store.pull import Pulled
from oxillama.store.removal import remove
from oxillama.store.transfer import RemoteFile

__all__ = ["delete", "pull"]

log = logging.getLogger("oxillama")

MOST_PULLS = 2  # at a time
TICK = 0.1  # seconds between lines of progress


class Stopped(BaseException):
    """The client has left, or the server ends: no error of the transfer's own is to catch it."""


class Progress:
    """Progress of a pull, which its thread writes and the event loop reads.

    lines: of what is done; the last one of the file that is under way takes the place of the one before.
    """

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self._lines: list[Body] = [{"status": "pulling manifest"}]
        self._digests: dict[str, str] = {}
        self._last: Body | None = None

    def planned(self, files: Sequence[RemoteFile]) -> None:
        """Notes which files are fetched."""
        self._digests = {file.filename: digest_of(file) for file in files}

    def report(self, filename: str, done: int, total: int) -> None:
        """Notes how far a file is. Raises Stopped when nothing of it is wanted any more."""
        if self.stopped.is_set():
            raise Stopped
        digest = self._digests.get(filename, "")
        line = {"status": f"pulling {digest.removeprefix('sha256:')[:12]}", "digest": digest, "total": total,
                "completed": done}  # fmt: skip
        with self._lock:
            if self._last is not None and self._last["digest"] != digest:
                self._lines.append(self._last)
            self._last = line

    def taken(self) -> list[Body]:
        """The lines since the last call."""
        with self._lock:
            found = [*self._lines, *([] if self._last is None else [self._last])]
            self._lines, self._last = [], None
        return found


def digest_of(file: RemoteFile) -> str:
    """The digest of a file as Ollama's lines have it; of a file whose SHA-256 isn't told, that of its name."""
    known = file.etag if len(file.etag) == 64 else hashlib.sha256(file.etag.encode()).hexdigest()
    return f"sha256:{known}"


# ---- pull


async def pull(exchange: Exchange) -> None:
    """POST /api/pull"""
    values = await exchange.fields(PULL)
    folder = allowed_folder(exchange, values, "fetches a model", "allow_pull")
    name = name_of(read_name(values))
    pulls = exchange.service.pulls
    if len(pulls) >= MOST_PULLS:
        raise ApiError(503, "busy", f"{MOST_PULLS} models are being fetched", headers={"Retry-After": "30"})
    progress, token = Progress(), object()
    pulls.add(token)
    try:
        task = started(partial(fetch, name, folder, progress))
        task.add_done_callback(lambda _: pulls.discard(token))
    except BaseException:
        pulls.discard(token)
        raise
    try:
        if read_stream(values):
            await told(exchange, task, progress)
        else:
            await finished(exchange, task)
            await exchange.json({"status": "success"})
    finally:
        progress.stopped.set()  # where the client has left


def read_stream(values: Values) -> bool:
    """Reads whether lines are wanted as the transfer goes on."""
    return bool(values.get("stream", True))


def fetch(name: HubName, folder: ModelFolder, progress: Progress) -> Pulled:
    """Fetches a model into the folder."""
    from oxillama.store.pull import pull as pull_model

    return pull_model(name, folder.store, progress.report, plan=progress.planned)


def name_of(given: str) -> HubName:
    """The model of the Hub that a client names. Raises ApiError."""
    if not given:
        raise bad_value("model", "model is required", "missing_parameter")
    try:
        name = read_hub_name(given, "model", bare=True)
        likely = hub_name_of(given) if name is None else None
        name = read_hub_name(likely, "model") if likely is not None else name
    except ConfigError as error:
        raise bad_value("model", str(error)) from None
    if name is None:
        text = f"model {given!r:.80} not found: models are those of the Hugging Face Hub, hf.co/OWNER/REPO:QUANT"
        raise ApiError(404, "model_not_found", text, "model")
    return name


def started(call: Callable[[], Any]) -> asyncio.Future[Any]:
    """call(), in a thread of its own, which keeps no process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
            future.exception()  # which may be wanted by nothing any more
        else:
            future.set_result(result)

    def run() -> None:
        result, error = None, cast(BaseException | None, None)
        try:
            result = call()
        except Stopped:
            error = RuntimeError("stopped")
        except BaseException as found:
            error = found
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:  # the loop has ended
            log.debug("a pull ended after its server")

    with starting("a thread of the server"):
        threading.Thread(target=run, name="oxillama-pull", daemon=True).start()
    return future


async def finished(exchange: Exchange, task: asyncio.Future[Any]) -> Pulled:
    """Waits for a model that is pulled, which is served from then on. Raises ApiError."""
    try:
        found: Pulled = await asyncio.shield(task)
    except (OxiLlamaError, OSError) as error:
        raise failed(exchange, error) from None
    await look_at_folder(exchange.service.models)
    log.info("pulled %s", found.name)
    return found


def failed(exchange: Exchange, error: Exception) -> ApiError:
    """The error of a pull for a client, which learns nothing of the server's folders."""
    models = exchange.service.models
    text = str(error)
    if models.folder is not None:
        text = text.replace(models.folder.store.root, "the folder of models")
    from oxillama.store.places import hub_cache

    text = models.without_paths(text.replace(hub_cache(), "the cache"))
    log.warning("a pull failed: %s", error)
    if isinstance(error, ModelNotFoundError):
        return ApiError(404, "model_not_found", text, "model")
    return ApiError(502, "pull_failed", text)


async def told(exchange: Exchange, task: asyncio.Future[Any], progress: Progress) -> None:
    """Streams the progress of a pull, a line each."""
    config, form = exchange.service.config, JsonLines(lambda: (None, {"status": "pulling"}))
    await exchange.start(200, form.headers)
    writer = EventWriter(
        exchange.send, stall=config.stall_timeout, most=config.max_backlog, ping=config.sse_ping, behind=lambda: 0,
        abort=exchange.abort, alive=form.alive, on_half_closed=exchange.on_half_closed,
    )  # fmt: skip
    try:
        async with writer:
            while not task.done():
                await asyncio.wait([task], timeout=TICK)
                if lines := progress.taken():
                    await writer.write(form.encoded((None, line) for line in lines))
            await writer.write(form.encoded((None, line) for line in await last_lines(exchange, task)))
    except ClientGone:
        exchange.gone = True
        raise
    exchange.ended = True
    await exchange.send({"type": "http.response.body", "body": b"", "more_body": False})


async def last_lines(exchange: Exchange, task: asyncio.Future[Any]) -> list[Body]:
    """The end of the stream: what was done, or the error."""
    try:
        await finished(exchange, task)
    except ApiError as error:
        exchange.usage.finish_reason = exchange.usage.failed = error.code
        return [error.ollama()]
    steps = ("verifying sha256 digest", "writing manifest", "success")
    return [{"status": status} for status in steps]


# ---- delete


async def delete(exchange: Exchange) -> None:
    """DELETE /api/delete"""
    values = await exchange.fields(DELETE)
    folder = allowed_folder(exchange, values, "deletes a model", "allow_delete")
    models = exchange.service.models
    name = served_name(models, read_name(values))
    model = models.find(name).model
    entry = folder.entries.get(model.id) if is_of_folder(model) else None
    if entry is None:
        text = f"{model.id} was given when the server was started, and stays"
        raise ApiError(403, "model_is_kept", text, "model")
    if entry.source != "pulled":
        raise ApiError(403, "model_is_kept", f"{model.id} was put into the folder by hand, and stays", "model")
    if model.pinned:
        raise ApiError(409, "model_is_kept", f"{model.id} stays in memory (--keep-loaded)", "model")
    if model.n_open or model.state == "loading":
        raise ApiError(409, "model_in_use", f"{model.id} is in use", "model")
    try:
        await in_thread(remove, entry, folder.store)
    except (OxiLlamaError, OSError) as error:
        raise failed(exchange, error) from None
    await look_at_folder(models)
    log.info("deleted %s", entry.name)
    await exchange.answer(b"", "application/json")


def allowed_folder(exchange: Exchange, values: Values, what: str, setting: str) -> ModelFolder:
    """The folder of models, if the operator lets clients change it. Raises ApiError otherwise."""
    service = exchange.service
    if service.models.folder is None:
        raise refused_here(exchange, values, what)
    check_admin(exchange, what)
    if not getattr(service.config, setting):
        flag = f"--{setting.replace('_', '-')}"
        raise ApiError(
            403, "not_allowed", f"{exchange.path} {what}, which this server doesn't do: start it with {flag}"
        )
    return service.models.folder
