"""Sockets that a server listens on. This module imports no engine, so that clients can connect at once."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import ssl
import stat
from collections.abc import Iterator

from oxillama.errors import ConfigError
from oxillama.server.auth import is_loopback
from oxillama.server.config import ServerConfig

__all__ = ["address_of", "bound", "check_exposure", "check_place", "check_tls", "listening", "most_connections"]

INHERITED = "fd://"  # a socket that a supervisor opened, such as systemd
BACKLOG = 1024
LONGEST_PATH = 103  # bytes of a Unix socket's, on every system
SPARE = 128  # descriptors for files, threads, and connections that are accepted to be refused


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
        for name in ("tls_cert", "tls_key"):
            _check_no_pipe(name, getattr(config, name))
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(config.tls_cert, config.tls_key)
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(
                f"tls_cert {config.tls_cert} with tls_key {config.tls_key} can't be used: {error}"
            ) from None


def _check_no_pipe(name: str, path: str) -> None:
    """Raises ConfigError for a pipe, which the library would wait for, and which can't be read a second time."""
    with contextlib.suppress(OSError):  # told where it is opened
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ConfigError(f"{name} {path} is no regular file")


def check_place(config: ServerConfig) -> None:
    """Raises ConfigError for an address that nothing can listen on here, whether or not another server does now."""
    try:
        if config.host.startswith(INHERITED):
            int(config.host.removeprefix(INHERITED))
        elif config.uds is not None:
            _check_path(config.uds)
        else:
            family, _, _, _, address = socket.getaddrinfo(config.host, 0, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, socket.SOCK_STREAM) as made:
                made.bind(address)
    except (OSError, ValueError) as error:
        raise _unusable(config, error) from None


def _unusable(config: ServerConfig, error: Exception) -> ConfigError:
    place = config.uds or f"{config.host} port {config.port}"
    return ConfigError(f"can't listen on {place}: {getattr(error, 'strerror', None) or error}")


def _check_path(path: str) -> None:
    """Raises OSError for a path that can't be one of a Unix socket; what isn't a socket is left as it is."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise OSError(f"the path of a Unix socket has at most {LONGEST_PATH} bytes")
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError("there is something else of this name, which is no socket")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(f"no file can be made in {folder}")


def most_connections(config: ServerConfig) -> int:
    """`max_connections`, or as many as there are descriptors for (RLIMIT_NOFILE), if that is less."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return config.max_connections
    return max(1, min(config.max_connections, most - min(SPARE, most // 2)))


@contextlib.contextmanager
def listening(config: ServerConfig) -> Iterator[socket.socket]:
    """`bound`, closed at the end, and the Unix socket is gone then."""
    made = bound(config)
    try:
        yield made
    finally:
        made.close()
        if config.uds is not None:
            with contextlib.suppress(OSError):
                os.unlink(config.uds)


def bound(config: ServerConfig) -> socket.socket:
    """The socket to listen on. Raises ConfigError, which names the address, if it can't be had.

    Connections wait in it from now on, also while the server is still imported.
    """
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
        raise _unusable(config, error) from None


def _unix(path: str) -> socket.socket:
    _check_path(path)
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
    """Address under which clients find the socket."""
    if config.uds is not None:
        return f"unix:{config.uds}"
    name = made.getsockname()
    host = f"[{name[0]}]" if ":" in str(name[0]) else name[0]
    return f"{'https' if config.tls_cert else 'http'}://{host}:{name[1]}" if len(name) > 1 else str(name)
