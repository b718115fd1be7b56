"""Names of models: of the Hugging Face Hub, of the store, and paths of files."""

from __future__ import annotations

import os
import re
import unicodedata
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from oxillama.errors import ConfigError
from oxillama.hub import check_names
from oxillama.store.quants import quant_of_tag

__all__ = ["FORM", "HUB", "HubName", "folded", "is_path", "read_hub_name", "short_of"]

HUB = "hf:"
FORM = "hf:OWNER/REPO, hf:OWNER/REPO:QUANT or hf:OWNER/REPO/FILE"
LONGEST = 4096  # characters of a name
_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
_SITE = re.compile(r"(?:https?://|(?:www\.)?(?:huggingface|hf)\.co/)", re.IGNORECASE)
# Parts of the Hub's addresses between a repository and a revision.
_VIEWS = ("resolve", "blob", "raw", "tree")
_LATEST = "latest"
_TAGGED = re.compile(r"[^/\s:]+/[^/\s:]+:[^/\s:]+")


@dataclass(frozen=True)
class HubName:
    """A model of the Hub. repo_id: "owner/name". filename: of its first file, where the name says it. quant: wanted,
    in capitals; None: the usual one. revision: branch, tag or commit; None: the main one."""

    repo_id: str
    filename: str | None = None
    quant: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        if self.filename is not None:
            return f"{HUB}{self.repo_id}/{self.filename}"
        return f"{HUB}{self.repo_id}" + (f":{self.quant}" if self.quant else "")


def read_hub_name(given: str, place: str = "name", *, bare: bool = False) -> HubName | None:
    """The model of the Hub that a name with `hf:` or an address of the Hub means; None for any other name.

    bare: OWNER/REPO and OWNER/REPO:QUANT are names of the Hub, too. Raises ConfigError, which names the place, for
    what begins as such a name and is none.
    """
    if given[: len(HUB)].lower() == HUB:
        return _of_parts(given, given[len(HUB) :], place)
    if _SITE.match(given):
        return _of_address(given, place)
    if bare and not is_path(given) and given.count("/") >= 1:
        return _of_parts(given, given, place)
    return None


def _check_length(given: str, place: str) -> None:
    if len(given) > LONGEST:
        raise ConfigError(f"{place} must be at most {LONGEST} characters, not {len(given)}")


def _of_parts(given: str, rest: str, place: str) -> HubName:
    _check_length(given, place)
    if _SITE.match(rest):  # hf:https://huggingface.co/...
        found = _of_address(rest, place)
        if found is not None:
            return found
    rest, at, revision = (rest, "", "") if rest.lower().endswith(".gguf") else rest.partition("@")
    owner, _, rest = rest.partition("/")
    if rest.endswith("/") and rest.count("/") == 1:
        rest = rest[:-1]
    repo, slash, filename = rest.partition("/")
    tag = ""
    if not slash:
        repo, _, tag = rest.partition(":")
    if not owner or not repo or (slash and not filename) or (at and not revision) or rest.endswith(":"):
        raise ConfigError(f"{place} must be {FORM}, not {given!r:.120}")
    if tag.lower().endswith(".gguf"):
        filename, tag = tag, ""
    return _checked(given, place, f"{owner}/{repo}", filename or None, tag, revision or None)


def _of_address(given: str, place: str) -> HubName | None:
    """The model of a page or a file of the Hub; None for another site's."""
    _check_length(given, place)
    try:
        parts = urlsplit(given if "://" in given else f"https://{given}")
        host = (parts.hostname or "").lower()
    except ValueError:
        raise ConfigError(f"{place} {given!r:.120} is no address") from None
    if host not in _hosts():
        raise ConfigError(
            f"{place} must be a file, a name such as {FORM}, or an address of the Hugging Face Hub, not "
            f"{given!r:.120}: download the file, and give its path"
        )
    steps = [unquote(step, errors="replace") for step in parts.path.split("/") if step]
    if len(steps) < 2:
        raise ConfigError(f"{place} must be the address of a repository or a file in it, not {given!r:.120}")
    repo, _, tag = steps[1].partition(":")
    rest = steps[2:]
    revision = filename = None
    if rest and rest[0] in _VIEWS and len(rest) >= 2:
        revision, filename = rest[1], "/".join(rest[2:]) or None
        if filename is not None and not filename.lower().endswith(".gguf"):
            if rest[0] != "tree":
                raise ConfigError(
                    f"{place} must be the address of a GGUF file, which ends in .gguf, not {given!r:.120}"
                )
            tag, filename = filename.rpartition("/")[2], None  # a folder, which is named after its quantisation
    elif rest:
        raise ConfigError(f"{place} must be the address of a repository or a file in it, not {given!r:.120}")
    main = None if revision == "main" else revision
    return _checked(given, place, f"{steps[0]}/{repo}", filename, tag, main)


def _hosts() -> tuple[str, ...]:
    """Hosts of the Hub, with that of HF_ENDPOINT."""
    own = urlsplit(os.environ.get("HF_ENDPOINT", "")).hostname
    return (*_HOSTS, own.lower()) if own else _HOSTS


def _checked(given: str, place: str, repo: str, filename: str | None, tag: str, revision: str | None) -> HubName:
    if tag and "\0" in tag:
        raise ConfigError(f"{place} must be {FORM}, not {given!r:.120}")
    try:
        check_names(repo, filename or "model.gguf")
    except ConfigError as error:
        raise ConfigError(f"{place} {printed(given)}: {error}") from None
    if revision is not None and (not re.fullmatch(r"[\w./-]{1,200}", revision) or ".." in revision):
        raise ConfigError(
            f"{place} {printed(given)}: the revision must be a branch, tag or commit, not {revision!r:.60}"
        )
    quant = None if tag.lower() in ("", _LATEST) else quant_of_tag(tag)
    if quant is None and tag.lower() not in ("", _LATEST):
        raise ConfigError(f"{place} {printed(given)}: {tag!r:.60} is no quantisation, such as Q4_K_M, Q8_0 or BF16")
    return HubName(repo, filename, quant, revision)


def printed(given: str) -> str:
    """A name in a message: as it is, or quoted where it would not be seen as it is."""
    return given if given.isprintable() and len(given) <= 120 else f"{given!r:.120}"


def is_path(given: str) -> bool:
    """Whether a text can only be the path of a file, and no name of a model."""
    return (
        given.startswith(("/", "./", "../", "~"))
        or given in (".", "..")
        or given.lower().endswith(".gguf")
        or given.count("/") > 2
    )


def is_hub_like(given: str) -> bool:
    """Whether a text is a name of the Hub without its `hf:`: OWNER/REPO:QUANT, or OWNER/NAME-GGUF."""
    if not _TAGGED.fullmatch(given):
        return bool(re.fullmatch(r"[\w.-]+/[\w.-]*gguf[\w.-]*", given, re.IGNORECASE))
    tag = given.rpartition(":")[2]
    return tag.lower() == _LATEST or tag.lower().endswith(".gguf") or quant_of_tag(tag) is not None


def folded(name: str) -> str:
    """A name as it is compared: upper and lower case are one, however accents are written."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def short_of(name: str) -> str:
    """A name without its owner."""
    return name.partition("/")[2] if "/" in name else name
