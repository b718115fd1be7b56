"""Serving: signals and the life of the process of `oxillama serve`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace

import uvicorn

from oxillama.errors import ConfigError, OxiLlamaError
from oxillama.server.app import App
from oxillama.server.collector import ServerCollector
from oxillama.server.config import ServerConfig
from oxillama.server.loop_errors import LoopErrors
from oxillama.server.protocol import guarded
from oxillama.server.sockets import BACKLOG, address_of, check_tls, most_connections

__all__ = ["ServerProcess"]

log = logging.getLogger("oxillama")

ACCEPTED_AT_ONCE = 64  # connections, before those that were accepted are looked at
MOST_READ = 1 << 19  # bytes that an event loop reads at a time, at most
# So long a thread waits for the interpreter while another one holds it: the event loop in each of its rounds, and the
# steps of a model, which give it back for each operation and ask for it again 250 times in a prompt of 300 tokens
# (SmolLM2 135M). Beside a thread that prepares requests that is 25 ms of 250; with 0.5 ms it were 125, and with 5 ms,
# as Python has it, more than a second.
SWITCH_SECONDS = 0.0001


class ServerProcess(uvicorn.Server):
    """uvicorn's server, with the ends that clients and supervisors want.

    SIGTERM and SIGINT: no further requests, those under way end within `drain_timeout`, and it ends with status 0; the
    second one ends it at once. SIGHUP reads the key files and the certificate again.
    """

    def __init__(self, app: App, config: ServerConfig, received: list[int] | None = None) -> None:
        """received: signals that came before the loop runs; more may be added until then."""
        self._app, self._settings, self._received = app, config, [] if received is None else received
        self._handlers = {signal.SIGTERM: self._end, signal.SIGINT: self._end, signal.SIGHUP: self._reload}
        self._draining: asyncio.Task[None] | None = None
        self._collector = ServerCollector(app.service.models)
        self.max_connections = most_connections(config)
        super().__init__(
            uvicorn.Config(
                app,
                http=guarded(replace(config, max_connections=self.max_connections)),
                backlog=ACCEPTED_AT_ONCE,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=config.keep_alive,  # type: ignore[arg-type]
                timeout_graceful_shutdown=2,
                ssl_certfile=config.tls_cert,
                ssl_keyfile=config.tls_key,
                h11_max_incomplete_event_size=config.max_headers + MOST_READ,
                proxy_headers=False,
            )
        )

    def serve_on(self, made: socket.socket) -> None:
        """Serves until it is told to end. Raises ConfigError, at its end, if none of its models could be loaded."""
        log.info("listening on %s", address_of(made, self._settings))
        if self.max_connections < self._settings.max_connections:
            log.warning(
                "max_connections is %d, of %d: there are descriptors for no more (ulimit -n)",
                self.max_connections, self._settings.max_connections,
            )  # fmt: skip
        before = sys.getswitchinterval()
        sys.setswitchinterval(min(before, SWITCH_SECONDS))
        self._collector.begin()
        try:
            self.run(sockets=[made])
        finally:
            self._collector.end()
            sys.setswitchinterval(before)
        if self._app.service.models.all_failed:
            raise ConfigError("no model could be loaded: the log says why")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Loads, and listens; errors of the loop go to the log from then on."""
        asyncio.get_running_loop().set_exception_handler(LoopErrors())
        await super().startup(sockets)
        for made in sockets or []:
            made.listen(BACKLOG)  # which is more than is accepted at once

    async def on_tick(self, counter: int) -> bool:
        """Whether to end, asked ten times a second: also when no model can ever answer; a supervisor sees it then."""
        while self._received and counter:  # by the second tick, clients that connected before have been read
            self._handlers[signal.Signals(self._received.pop(0))]()
        self._collector.look(busy=bool(self._app.service.open))
        return self._app.service.models.all_failed or await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles signals in the event loop, and raises none again at the end."""
        loop = asyncio.get_running_loop()
        handled = dict(self._handlers)
        try:
            for number, handler in handled.items():
                loop.add_signal_handler(number, handler)
        except (RuntimeError, ValueError):  # not the main thread, whose program ends it by `end`
            handled = {}
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def _end(self) -> None:
        if self._draining is not None:  # the second time
            self.force_exit = self.should_exit = True
            return
        self._draining = asyncio.ensure_future(self.end())

    async def end(self) -> None:
        """Drains, and ends the server."""
        log.info("ending: %d requests are under way", len(self._app.service.open))
        await self._app.service.drain(self._settings.drain_timeout)
        self.should_exit = True

    def _reload(self) -> None:
        try:
            self._app.service.reload_keys()
            log.info("read the keys again")
        except OxiLlamaError as error:
            log.error("the keys stay as they are: %s", error)
        if self.config.ssl is None or self._settings.tls_cert is None:
            return
        try:
            check_tls(self._settings)  # a chain and a key that don't fit each other would spoil the context
            self.config.ssl.load_cert_chain(self._settings.tls_cert, self._settings.tls_key)
            log.info("read the certificate again")
        except (OxiLlamaError, OSError) as error:
            log.error("the certificate stays as it is: %s", error)
