"""Repositories of the Hub: their GGUF files, and which of them a name means."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from oxillama._util.checks import nearest
from oxillama.errors import ConfigError, ModelNotFoundError
from oxillama.hub import check_names, first_of, shard_names
from oxillama.store.names import HubName
from oxillama.store.quants import USUAL, kind_of, nearest_quant, quant_of_file
from oxillama.store.trouble import check_reachable, is_absent, patiently, trouble

__all__ = ["Choice", "choose", "files_of_hub"]

MOST_SHOWN = 12  # names in a message
MOST_FILES = 100_000
TIMEOUT = 10.0


@dataclass(frozen=True)
class Choice:
    """Files that a name means: one, or all parts of a split model.

    quant: theirs, if their names say it. said: what to tell, such as that another quantisation was taken than the usual
    one. beside: files of the repository that go with a model, by kind: "mmproj", "draft".
    """

    files: list[str]
    quant: str | None
    said: str = ""
    beside: dict[str, list[str]] = field(default_factory=dict)


def files_of_hub(name: HubName) -> list[str]:
    """Names of the GGUF files of a repository; those that can't be names of files here are left out.

    Raises ModelNotFoundError, LoadError.
    """
    from huggingface_hub import HfApi

    what = f"{name}" + (f" at {name.revision!r}" if name.revision else "")
    check_reachable(what)
    try:
        found = patiently(lambda: HfApi().model_info(name.repo_id, revision=name.revision, timeout=TIMEOUT))
        names = [one.rfilename for one in found.siblings or []]
    except Exception as error:  # its releases raise the errors of different HTTP libraries
        if getattr(getattr(error, "response", None), "status_code", None) != 404 or is_absent(error):
            raise trouble(what, error) from error
        try:  # a mirror may have one way to ask alone
            names = HfApi().list_repo_files(name.repo_id, revision=name.revision)
        except Exception:
            raise trouble(what, error) from error
    return [one for one in names[:MOST_FILES] if is_file_name(one)]


def is_file_name(filename: object) -> bool:
    """Whether a name that the Hub gives can be that of a GGUF file below a folder here, or of a part of one."""
    if not isinstance(filename, str) or not filename.lower().endswith(".gguf") or len(filename.encode()) > 1024:
        return False
    try:
        check_names("owner/name", first_of(filename))
    except ConfigError:
        return False
    return all(len(part.encode()) <= 255 for part in filename.split("/"))


def choose(name: HubName, there: Iterable[str]) -> Choice:
    """The files of a repository that a name means. Raises ModelNotFoundError, which says what there is instead, and
    ConfigError for a name that means several models."""
    names = sorted(there)
    beside = {kind: [one for one in firsts(names) if kind_of(one) == kind] for kind in ("mmproj", "draft")}
    beside = {kind: found for kind, found in beside.items() if found}
    if name.filename is not None:
        return Choice(_parts(name, _named(name, names), names), quant_of_file(name.filename), "", {})
    models = [one for one in firsts(names) if kind_of(one) is None] or firsts(names)
    if not models:
        raise ModelNotFoundError(
            f"{name.repo_id!r} has no GGUF file: look for a repository of the same model whose name ends in -GGUF"
        )
    quant, said = _quant(name, models)
    fitting = [one for one in models if quant_of_file(one) == quant]
    if len(fitting) > 1:
        fitting = _plainest(fitting)
    if len(fitting) > 1:
        raise ConfigError(
            f"{name} is the name of {len(fitting)} files: give one of "
            f"{_listed(f'hf:{name.repo_id}/{one}' for one in fitting)}"
        )
    return Choice(_parts(name, fitting[0], names), quant, said, beside)


def firsts(names: list[str]) -> list[str]:
    """Files that are models by themselves, or the first of a split one."""
    return [one for one in names if first_of(one) == one]


def _named(name: HubName, names: list[str]) -> str:
    wanted = name.filename or ""
    if wanted in names:
        return wanted
    same = [one for one in names if one.lower() == wanted.lower() or one.rpartition("/")[2].lower() == wanted.lower()]
    if len(same) == 1:
        return same[0]
    near = nearest(wanted, names)
    remedy = f"; did you mean {near!r}?" if near else f"; there are {_listed(firsts(names))}"
    raise ModelNotFoundError(f"{name.repo_id!r} has no file {wanted!r:.120}{remedy if names else ''}")


def _quant(name: HubName, models: list[str]) -> tuple[str | None, str]:
    """The quantisation that is taken, and what is to be said of it."""
    known = [quant_of_file(one) for one in models]
    there = sorted({one for one in known if one is not None})
    if not there:
        return None, ""
    if name.quant is None:
        quant = nearest_quant(there)
        usual = quant in (USUAL, f"UD-{USUAL}")
        return quant, "" if usual else f"there is no {USUAL}: {quant} is the nearest of {_listed(there)}"
    found = name.quant if name.quant in there else f"UD-{name.quant}"
    if found not in there:
        near = nearest_quant(there, name.quant)
        raise ModelNotFoundError(
            f"{name.repo_id!r} has no {name.quant}: there are {_listed(there)}; the nearest is hf:{name.repo_id}:{near}"
        )
    return found, ""


def _plainest(fitting: list[str]) -> list[str]:
    """Files of one quantisation that lie in the fewest folders; the whole one beside a split one."""
    least = min(one.count("/") for one in fitting)
    top = [one for one in fitting if one.count("/") == least]
    whole = [one for one in top if len(shard_names(one)) == 1]
    return whole if len(whole) == 1 else top


def _parts(name: HubName, first: str, names: list[str]) -> list[str]:
    parts = shard_names(first_of(first))
    missing = [part for part in parts if part not in names]
    if missing:
        raise ModelNotFoundError(
            f"{name.repo_id!r} has not all parts of {parts[0]!r}: {_listed(missing)} of {len(parts)} are missing"
        )
    return parts


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - MOST_SHOWN} more" if len(found) > MOST_SHOWN else ""
    return ", ".join(found[:MOST_SHOWN]) + more
