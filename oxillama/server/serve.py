"""Serving: sockets, signals and the life of the process of `oxillama serve`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
from collections.abc import Iterator

import uvicorn

from oxillama.errors import ConfigError, OxiLlamaError
from oxillama.server.app import App
from oxillama.server.auth import is_loopback
from oxillama.server.config import ServerConfig
from oxillama.server.protocol import guarded

__all__ = ["ServerProcess", "bound", "check_exposure"]

log = logging.getLogger("oxillama")

INHERITED = "fd://"  # a socket that a supervisor opened, such as systemd
BACKLOG = 1024
MOST_READ = 1 << 19  # bytes that an event loop reads at a time, at most


def check_exposure(config: ServerConfig, has_keys: bool) -> None:
    """Raises ConfigError for a server that others than this machine's users could use without a key."""
    if (
        not has_keys
        and not is_loopback(config)
        and not config.host.startswith(INHERITED)
        and not config.insecure_no_key
    ):
        raise ConfigError(
            f"host {config.host} can be reached from other machines, and there is no key: give api_key_file, or "
            "insecure_no_key to let every client in"
        )
    check_tls(config)


def check_tls(config: ServerConfig) -> None:
    """Raises ConfigError for a certificate and a key that can't be used."""
    if config.tls_cert is not None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(config.tls_cert, config.tls_key)
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(
                f"tls_cert {config.tls_cert} with tls_key {config.tls_key} can't be used: {error}"
            ) from None


def bound(config: ServerConfig) -> socket.socket:
    """The socket to listen on. Raises ConfigError, which names the address, if it can't be had."""
    try:
        if config.host.startswith(INHERITED):
            return socket.socket(fileno=int(config.host.removeprefix(INHERITED)))
        if config.uds is not None:
            return _unix(config.uds)
        family, _, _, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind(address)
            made.listen(BACKLOG)
        except OSError:
            made.close()
            raise
        return made
    except (OSError, ValueError) as error:
        place = config.uds or f"{config.host} port {config.port}"
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"can't listen on {place}: {reason}") from None


def _unix(path: str) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        probe = socket.socket(socket.AF_UNIX)
        try:
            probe.connect(path)
        except ConnectionRefusedError:  # of a server that is gone
            os.unlink(path)
        else:
            raise OSError("another server listens there")
        finally:
            probe.close()
    made = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        made.bind(path)
    finally:
        os.umask(before)
    made.listen(BACKLOG)
    return made


def address_of(made: socket.socket, config: ServerConfig) -> str:
    """Where clients find it."""
    if config.uds is not None:
        return f"unix:{config.uds}"
    name = made.getsockname()
    host = f"[{name[0]}]" if ":" in str(name[0]) else name[0]
    return f"{'https' if config.tls_cert else 'http'}://{host}:{name[1]}" if len(name) > 1 else str(name)


class ServerProcess(uvicorn.Server):
    """uvicorn's server, with the ends that clients and supervisors want.

    SIGTERM and SIGINT: no further requests, those under way end within `drain_timeout`, and it ends with status 0; the
    second one ends it at once. SIGHUP reads the key files and the certificate again.
    """

    def __init__(self, app: App, config: ServerConfig) -> None:
        self._app, self._settings = app, config
        self._draining: asyncio.Task[None] | None = None
        super().__init__(
            uvicorn.Config(
                app,
                http=guarded(config),
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
        try:
            self.run(sockets=[made])
        finally:
            if self._settings.uds is not None:
                with contextlib.suppress(OSError):
                    os.unlink(self._settings.uds)
        if self._app.service.models.all_failed:
            raise ConfigError("no model could be loaded: the log says why")

    async def on_tick(self, counter: int) -> bool:
        """Whether to end, asked ten times a second: also when no model can ever answer; a supervisor sees it then."""
        return self._app.service.models.all_failed or await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles signals in the event loop, and raises none again at the end."""
        loop = asyncio.get_running_loop()
        handled = {signal.SIGTERM: self._end, signal.SIGINT: self._end, signal.SIGHUP: self._reload}
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
