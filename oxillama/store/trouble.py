"""Trouble with the Hub: whether it can be reached at all, what is tried again, and what errors of its library say."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from oxillama.errors import ConfigError, LoadError, ModelNotFoundError, OxiLlamaError

__all__ = [
    "TRIES",
    "check_reachable",
    "first_line",
    "is_absent",
    "is_offline",
    "is_reachable",
    "patiently",
    "trouble",
    "wait_before_again",
]

T = TypeVar("T")

PATIENCE = 1.5  # seconds in which the Hub, or the proxy before it, takes a connection
TRIES = 5
LONGEST_WAIT = 60.0  # seconds that the Hub may ask to wait for
_AGAIN = (429, 500, 502, 503, 504)


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids to ask the network."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def check_reachable(what: str) -> None:
    """Raises ModelNotFoundError if the Hub can't be asked: soon, however long the network would be waited for."""
    if is_offline():
        raise ModelNotFoundError(
            f"{what} is not in the local cache, and HF_HUB_OFFLINE forbids to download it: unset it, or fetch the file "
            "beforehand"
        )
    from huggingface_hub import constants

    if not is_reachable(constants.ENDPOINT):
        host = urlsplit(constants.ENDPOINT).netloc
        raise ModelNotFoundError(
            f"{what} is not here, and the Hub can't be reached at {host}: look at the network (HTTPS_PROXY, "
            "HF_ENDPOINT), or give the path of a file"
        )


def is_reachable(url: str, patience: float = PATIENCE) -> bool:
    """Whether a site, or the proxy before it, takes a connection within so many seconds, names included."""
    import socket
    import urllib.request

    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy and not urllib.request.proxy_bypass(parts.netloc):
        via = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        host, port = via.hostname or "", via.port or (443 if via.scheme == "https" else 80)
    found: list[bool] = []

    def connect() -> None:
        with contextlib.suppress(OSError, UnicodeError), socket.create_connection((host, port), patience):
            found.append(True)

    # In a thread of its own: a name server that doesn't answer is waited for much longer.
    thread = threading.Thread(target=connect, name="oxillama-reach", daemon=True)
    thread.start()
    thread.join(patience)
    return bool(found)


def patiently(ask: Callable[[], T]) -> T:
    """ask(), once more where the Hub says to come back soon. Raises what it raises in the end."""
    for failures in range(1, TRIES + 1):
        try:
            return ask()
        except Exception as error:
            wait = wait_before_again(error, failures) if hasattr(error, "response") else None
            if wait is None or failures == TRIES:
                raise
            time.sleep(wait)
    raise AssertionError("unreachable")


def wait_before_again(error: BaseException, failures: int) -> float | None:
    """Seconds to wait before a request is made again; None for an error that will be the same then, and where the Hub
    says to come back much later."""
    response = getattr(error, "response", None)
    if response is None:
        return min(2.0 ** (failures - 1) / 4, LONGEST_WAIT)
    if response.status_code not in _AGAIN:
        return None
    wait = _wait_of(response) if response.status_code == 429 else min(2.0 ** (failures - 1) / 4, LONGEST_WAIT)
    return wait if wait <= LONGEST_WAIT else None


def _wait_of(response: Any) -> float:
    """Seconds that an answer says to wait."""
    given = str(getattr(response, "headers", {}).get("Retry-After", "")).strip()
    return float(given) if given.isascii() and given.isdecimal() and len(given) < 10 else 1.0


def trouble(what: str, error: BaseException) -> OxiLlamaError:
    """The error to raise for one of the Hub's library, in a line."""
    from huggingface_hub import errors

    if isinstance(error, OxiLlamaError):
        return error
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if isinstance(error, errors.HFValidationError):
        return ConfigError(f"repo_id must be 'owner/name': {first_line(error)}")
    if isinstance(error, errors.GatedRepoError):
        return ModelNotFoundError(
            f"can't get {what} from the Hub: it is gated; accept its terms on its page there, and give a token of "
            "yours as HF_TOKEN or by `hf auth login`"
        )
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403):
        token = "the token that is given doesn't open it" if _has_token() else "a private one needs a token in HF_TOKEN"
        missing = "there is no such repository, or it is private" if status != 403 else "it is refused"
        return ModelNotFoundError(f"can't get {what} from the Hub: {missing} ({token})")
    absent = (errors.EntryNotFoundError, errors.LocalEntryNotFoundError, errors.RevisionNotFoundError)
    if isinstance(error, absent):
        return ModelNotFoundError(f"can't get {what} from the Hub: {first_line(error)}")
    if status == 429:
        wait = f"in {_wait_of(response):.0f} s"
        return LoadError(f"can't get {what} from the Hub: it takes no more requests now; try again {wait}")
    return LoadError(f"can't get {what} from the Hub: {first_line(error)}")


def is_absent(error: BaseException | None) -> bool:
    """Whether the Hub said that it has no such file or revision, in a repository that it has."""
    from huggingface_hub import errors

    found = isinstance(error, errors.EntryNotFoundError | errors.RevisionNotFoundError)
    return found and not isinstance(error, errors.LocalEntryNotFoundError)


def _has_token() -> bool:
    try:
        from huggingface_hub import get_token

        return bool(get_token())
    except (ImportError, OSError):
        return bool(os.environ.get("HF_TOKEN"))


def first_line(error: BaseException) -> str:
    """The first line of a message that says something: the Hub's run over many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
