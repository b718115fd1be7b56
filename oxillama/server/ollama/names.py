"""Names, times and durations as Ollama's API writes them."""

from __future__ import annotations

import contextlib
import math
import re
import time
from datetime import UTC, datetime, timedelta

from oxillama.server.errors import ApiError, bad_value
from oxillama.server.field_types import Values
from oxillama.server.models import Models

__all__ = [
    "LATEST",
    "human_number",
    "moment",
    "nanoseconds",
    "read_name",
    "seconds_of",
    "served_name",
    "tagged",
    "timestamp",
]

LATEST = ":latest"
# What a full name begins with that names no other place than Ollama's own library.
_LIBRARY = re.compile(r"(?:registry\.ollama\.ai/)?(?:library/)?", re.IGNORECASE)
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_NUMBER = re.compile(r"\d{1,30}(?:\.\d{0,30})?")
FOREVER = 36525 * 86400.0  # seconds after which a model leaves that stays


def read_name(values: Values) -> str:
    """Reads the name of a model as a request has it; "" of one that names none."""
    return values.get("model") or values.get("name") or ""


def served_name(models: Models, given: str) -> str:
    """The name of a served model or adapter that a name of Ollama's form means.

    The tag `latest` may be left out or given, upper and lower case are one, and NAME:TAG also means the model that is
    served as NAME-TAG. Raises ApiError in Ollama's words for a name that means none.
    """
    if not given:
        raise bad_value("model", "model is required", "missing_parameter")
    names = list(models.names())
    plain = _LIBRARY.sub("", given, count=1)
    plain = plain[: -len(LATEST)] if plain.lower().endswith(LATEST) else plain
    for name in (given, plain):
        if name in names:
            return name
    folded = {_folded(name): name for name in reversed(names)}
    if found := folded.get(_folded(plain)):
        return found
    for name in filter(None, (given, plain)):  # an adapter, maybe of a model that isn't loaded, or any name at all
        with contextlib.suppress(ApiError):
            models.find(name)
            return name
    raise ApiError(404, "model_not_found", f"model '{given}' not found", "model")


def _folded(name: str) -> str:
    return name.lower().replace(":", "-")


def tagged(name: str) -> str:
    """A name with its tag."""
    return name if ":" in name else name + LATEST


def timestamp(now: int | None = None) -> str:
    """A time as RFC 3339 in UTC, with nanoseconds. now: nanoseconds since 1970; None: now."""
    seconds, rest = divmod(time.time_ns() if now is None else now, 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:09d}Z"


def moment(seconds: float) -> str:
    """The time in so many seconds from now; in a century at the latest."""
    later = timedelta(seconds=min(seconds, FOREVER))
    return (datetime.now(UTC) + later).isoformat(timespec="microseconds").replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    """Seconds as whole nanoseconds, none below zero."""
    return max(round(seconds * 1e9), 0)


def seconds_of(place: str, value: float | str) -> float:
    """Seconds of a duration: a number of them, or Go's form, such as 5m or 1h30m; below zero it has no end.

    Raises ApiError, which names the place.
    """
    if isinstance(value, str):
        sign, text = (-1, value[1:]) if value[:1] == "-" else (1, value.removeprefix("+"))
        parts = _PART.findall(text)
        if text and "".join(number + unit for number, unit in parts) == text:
            value = sign * sum(float(number) * _UNITS[unit] for number, unit in parts)
        elif _NUMBER.fullmatch(text):
            value = sign * float(text)
        else:
            raise bad_value(place, f"{place} must be a duration such as 5m, 1h30m or -1, not {value!r:.40}")
    return math.inf if value < 0 else float(value)


def human_number(number: int) -> str:
    """A number of parameters as Ollama shows it: 8.0B, 134.52M, 12K."""
    for least, unit, digits in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 0)):
        if number >= least:
            return f"{number / least:.0f}{unit}" if not number % least else f"{number / least:.{digits}f}{unit}"
    return str(number)
