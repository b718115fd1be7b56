"""Request jobs: OpenAI's batch files, answered by the server's own handlers without a connection.

A line of input is {"custom_id", "method", "url", "body"}, one of output {"id", "custom_id", "response", "error"}, as
OpenAI's Batch API has them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oxillama.data.answer_lines import answer_line, check_line
from oxillama.data.identity import identity_of
from oxillama.data.journal import Journal, digest_of, json_bytes
from oxillama.data.key_table import KeyTable
from oxillama.data.progress import Progress, Rows
from oxillama.data.same_file import SameFile
from oxillama.data.table_job import Report, check_paths, journal_of
from oxillama.data.text_tables import numbered_lines, read_object
from oxillama.errors import ConfigError
from oxillama.gguf.output import atomic_file

if TYPE_CHECKING:
    from oxillama.engine import Engine
    from oxillama.server.app import App

__all__ = ["URLS", "answer_file", "is_request_file"]

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/rerank", "/v1/score")
FIELDS = {"custom_id": str, "method": str, "url": str, "body": dict}
TOGETHER = 64  # requests that are under way; the engine runs as many in one step
NO_LIMIT = 1e9  # seconds


@dataclass(frozen=True, slots=True)
class Request:
    """A line of input, and its number. digest: of what it asks for."""

    number: int
    id: str
    url: str
    body: bytes
    digest: str
    streams: bool


def is_request_file(path: str) -> bool:
    """Whether the first line of a file that isn't blank is a request. Raises OSError, ConfigError for no file."""
    with SameFile(path).opened() as file, suppress(ValueError, RecursionError):
        lines = iter(lambda: file.readline(1 << 24), b"")
        first = json.loads(next((line for _, line in numbered_lines(lines) if line.strip()), b""))
        return isinstance(first, dict) and {"custom_id", "url", "body"} <= first.keys()
    return False


def read_requests(source: SameFile) -> Iterator[Request]:
    """The requests of a file. Raises ConfigError, which names the line, for one that is no request; OSError."""
    with source.opened() as file:
        for number, line in numbered_lines(file):
            if line.strip():
                yield _read(f"{source.path}: line {number}", number, line)


def count_requests(source: SameFile, folder: str) -> int:
    """Counts the requests of a file. folder: for a file that remembers their names meanwhile.

    Raises ConfigError, which names the line, for one that is no request, or has the name of another; OSError.
    """
    with KeyTable(folder, 0) as names:
        for request in read_requests(source):
            if names.put(request.id.encode("utf-8", "surrogatepass")) is not None:
                place = f"{source.path}: line {request.number}"
                raise ConfigError(f"{place}: custom_id {request.id!r:.80} is there twice")
        return len(names)


def _read(place: str, number: int, line: bytes) -> Request:
    found = read_object(place, line)
    for name, kind in FIELDS.items():
        if not isinstance(found.get(name), kind):
            raise ConfigError(f"{place}: {name} must be {'an object' if kind is dict else 'a text'}")
    if extra := found.keys() - FIELDS.keys():
        raise ConfigError(f"{place}: {sorted(extra)[0]!r:.80} is not known: a request has {', '.join(FIELDS)}")
    if found["method"] != "POST" or found["url"] not in URLS:
        given = f"{found['method']} {found['url']}"
        raise ConfigError(f"{place}: method and url must be POST and one of {', '.join(URLS)}, not {given:.80}")
    try:
        body = json.dumps(found["body"], ensure_ascii=True).encode()
        digest = digest_of([found["url"], found["body"]])
    except RecursionError:
        raise ConfigError(f"{place}: body is nested too deep") from None
    return Request(number, found["custom_id"], found["url"], body, digest, bool(found["body"].get("stream")))


def answer_file(
    engine: Engine, source: str, output: str, *, name: str = "oxillama-default", aliases: tuple[str, ...] = (),
    limit: int | None = None, again: bool = False, progress: Progress = False, deadline: float | None = None,
    tool_format: str | None = None,
) -> Report:  # fmt: skip
    """Answers the requests of a file, and writes the answers to another, in the order of the requests.

    What a request answers is what `oxillama serve` answers. Finished ones stand in `OUTPUT.partial` until all are, and
    none failed, by their custom_id: a call goes on with the others, also those that were added to the input since. A
    request whose content changed is answered again. An output without that file, which a finished job has left, is
    refused, since nothing says what it was made with.

    name, aliases: what requests may call the model, as for the server; without `model` they mean it, too. again: answer
    those anew that failed. deadline: seconds for an answer. tool_format: as of the server. A first SIGINT (in the main
    thread) ends it, and keeps what is finished; the report says then that the output isn't whole.

    Raises ConfigError for a line that is no request, before anything is computed, or without the extra `server`;
    OSError.
    """
    check_paths(source, output)
    requests = SameFile(source)
    n_all = count_requests(requests, os.path.dirname(os.path.abspath(output)))
    report = Report(n_all if limit is None else min(limit, n_all))
    app = _app_of(engine, name, aliases, deadline, tool_format)
    made_with = {"kind": "requests", **identity_of(engine), **({"tool_format": tool_format} if tool_format else {})}
    with Journal(journal_of(output), made_with, check=check_line) as journal:

        def lacking() -> Iterator[Request]:
            return _lacking(islice(read_requests(requests), report.n_rows), journal, again)

        report.n_before = report.n_rows - sum(1 for _ in lacking())
        shown = Rows(progress, report.n_rows, report.n_before)
        try:
            asyncio.run(_answer_all(app, lacking(), partial(_keep, journal, report, shown, digest_of(made_with))))
        finally:
            shown.close()
        report.whole = report.n_before + report.n_done == report.n_rows
        if report.whole:
            _write(requests, output, journal, report)
            if report.n_rows == n_all and not report.errors:
                journal.remove()
    return report


def _lacking(wanted: Iterator[Request], journal: Journal, again: bool) -> Iterator[Request]:
    return (one for one in wanted if not journal.has(one.id, one.digest, again=again))


def _app_of(
    engine: Engine, name: str, aliases: tuple[str, ...], deadline: float | None, tool_format: str | None
) -> App:
    try:
        from oxillama.engine.async_engine import AsyncEngine
        from oxillama.server.app import App
        from oxillama.server.config import ServerConfig
        from oxillama.server.models import Models, ServedModel
        from oxillama.server.service import Service
    except ImportError as error:
        raise ConfigError(f"requests need {error.name}: pip install '.[server]' from a checkout") from None
    config = ServerConfig(
        max_body=1 << 40, max_n=128, max_logprobs=1024, max_running=TOGETHER, queue_timeout=NO_LIMIT,
        request_timeout=NO_LIMIT if deadline is None else deadline, ui=False, docs=False,
        tool_format=tool_format,
    )  # fmt: skip
    model = ServedModel(name, AsyncEngine(engine), aliases=aliases)
    return App(Service(Models([model], config), config))


async def _answer_all(app: App, left: Iterator[Request], keep: Callable[[Request, int, dict[str, Any]], None]) -> None:
    """Answers requests, some of them at a time, until SIGINT."""

    async def work() -> None:
        for request in left:
            keep(request, *await _answer(app, request))
            await asyncio.sleep(0)  # what is refused at once gives no other task its turn

    tasks = [asyncio.ensure_future(work()) for _ in range(TOGETHER)]
    stopped = asyncio.Event()

    def stop() -> None:
        stopped.set()
        for task in tasks:
            task.cancel()

    with _at_interrupt(stop):
        try:
            await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            if not stopped.is_set():
                raise
        finally:
            stop()
            await app.service.close()


@contextmanager
def _at_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Calls `stop` at SIGINT. Other threads than the main one get none; where it is ignored, it stays ignored."""
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # as shells start commands in the background
    if ignored or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _answer(app: App, request: Request) -> tuple[int, dict[str, Any]]:
    """The status and the body that a request gets."""
    from oxillama.server.errors import bad_value

    if request.streams:
        refused = bad_value("stream", "stream must be left out: a batch has whole answers")
        return refused.status, refused.openai()
    status, body = 0, bytearray()

    async def receive() -> dict[str, Any]:
        if not received:
            received.append(True)
            return {"type": "http.request", "body": request.body, "more_body": False}
        await asyncio.Event().wait()  # the client never leaves
        raise AssertionError

    async def send(message: Mapping[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            body.extend(message.get("body", b""))

    received: list[bool] = []
    await app(_scope(request.url), receive, send)
    return status, json.loads(body)


def _scope(url: str) -> dict[str, Any]:
    """An ASGI request to a server of this machine."""
    return {
        "type": "http", "method": "POST", "path": url, "raw_path": url.encode(), "query_string": b"", "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")], "http_version": "1.1",
        "scheme": "http", "client": None, "server": ("localhost", 80),
    }  # fmt: skip


def _keep(
    journal: Journal, report: Report, shown: Rows, seed: str, request: Request, status: int, body: dict[str, Any]
) -> None:
    line = answer_line(f"{seed} {request.digest}", request.id, status, body)
    journal.add(request.id, request.digest, line, failed=status >= 400)
    n_tokens = (body.get("usage") or {}).get("completion_tokens", 0)
    report.n_done += 1
    report.n_tokens += n_tokens
    shown.add(n_tokens)


def _write(source: SameFile, output: str, journal: Journal, report: Report) -> None:
    """Writes all answers, in the order of the requests."""
    with atomic_file(Path(output)) as file:
        for request in islice(read_requests(source), report.n_rows):
            line = journal.value(request.id)
            error = line["response"]["body"].get("error") if line["response"]["status_code"] >= 400 else None
            if error:
                report.failed(request.id, str(error.get("code")), str(error.get("message")))
            file.write(json_bytes(line) + b"\n")
