"""Files of models by what programs and command lines give: paths, names of the store, names of the Hub."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from oxillama.errors import ConfigError, LoadError, ModelNotFoundError
from oxillama.store.library import hub_name_of
from oxillama.store.names import HUB, LONGEST, HubName, folded, is_hub_like, is_path, printed, read_hub_name
from oxillama.store.progress import DownloadBar
from oxillama.store.store import Store, nearest_names

__all__ = ["find_hub_model", "find_model", "is_known", "is_name", "kept_path"]

log = logging.getLogger("oxillama")

Say = Callable[[str], None]
NEAR_FILES = 1000  # names of a folder among which the nearest are looked for


def find_model(given: str | os.PathLike[str], place: str = "model_path", *, fetch: bool = True,
               say: Say | None = None) -> str:  # fmt: skip
    """Path of the file that is meant: a path, `~` for the home folder, a name of the store, or one of the Hub
    (`hf:OWNER/REPO:QUANT`, or an address of it), which is fetched unless it is here.

    place: name of the argument in errors. fetch: whether the network may be asked. say: told what is chosen.

    Raises ConfigError for what can't be
    a name, ModelNotFoundError, which says what was looked for, what is like it, and how it is fetched, and LoadError
    for trouble with the Hub. A path that only can be one is given back as it is, whether a file is there or not.
    """
    if not isinstance(given, str):
        return os.path.expanduser(os.fspath(given))
    _check_null(given, place)
    path = os.path.expanduser(given)
    if os.path.isfile(path):  # a folder of that name is no model, and hides none
        return path
    name = read_hub_name(given, place)
    if name is not None:
        return find_hub_model(name, fetch=fetch, say=say)
    if given and len(given) <= LONGEST and not given.startswith(("/", "./", "../", "~")):
        store = Store()
        if (entry := store.find(given) or store.find(hub_name_of(given) or "")) is not None:
            if entry.fault:
                raise ModelNotFoundError(
                    f"{place} {printed(given)}: {entry.fault}{_fetching(entry.repo_id, entry.quant)}"
                )
            return entry.path
        if not is_path(given) and not os.path.isdir(path):
            raise _unknown(given, place, store)
    if not os.path.lexists(path) and (near := _near_files(path)):
        raise ModelNotFoundError(f"{path}: there is no such file; did you mean {' or '.join(near)}?")
    return path


def _check_null(given: str, place: str) -> None:
    if "\0" in given:
        raise ConfigError(f"{place} must be a path or a name of a model without null characters, not {given!r:.120}")


def _fetching(repo_id: str, quant: str | None) -> str:
    return f"; oxillama pull {HUB}{repo_id}{f':{quant}' if quant else ''}" if repo_id else ""


def find_hub_model(name: HubName, *, fetch: bool = True, say: Say | None = None) -> str:
    """Path of the file of a model of the Hub: the one that is here, or fetched. Raises what `find_model` raises."""
    entry = None if name.revision is not None else Store().find(str(name))
    if entry is not None and not entry.fault and entry.source in ("pulled", "hub") and _is(entry.repo_id, name):
        return entry.path
    if not fetch:
        raise ModelNotFoundError(f"{name} is not on this machine: oxillama pull {name}")
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        raise LoadError(f"{name}: the Hub needs huggingface_hub, which can't be imported ({error})") from error
    from oxillama.store.pull import pull

    with DownloadBar() as bar:
        return pull(name, Store(), bar, say or log.info).path


def _is(repo_id: str, name: HubName) -> bool:
    return folded(repo_id) == folded(name.repo_id)


def _unknown(given: str, place: str, store: Store) -> ModelNotFoundError:
    """The error for a name of nothing: what was looked for where, what is like it, and the command that fetches it."""
    near = nearest_names(store.entries(), given)
    likely = hub_name_of(given)
    text = (
        f"{place} {printed(given)}: there is no such file, and no model of that name in {store.root}, the Hub's cache "
    )
    text += "or Ollama's folder"
    text += f"; the nearest: {', '.join(near)}" if near else ""
    if read_as_hub := (is_hub_like(given) or given.count("/") == 1) and read_hub_name(given, place, bare=True):
        return ModelNotFoundError(f"{text}; to fetch it: oxillama pull {read_as_hub}")
    if likely is not None:
        return ModelNotFoundError(f"{text}; to fetch it: oxillama pull {likely}")
    return ModelNotFoundError(f"{text}; to fetch one: oxillama pull hf:OWNER/REPO")


def _near_files(path: str) -> list[str]:
    """Names like that of a file which is missing, of its folder."""
    import difflib

    folder, name = os.path.split(path)
    try:
        names = [one.name for one in os.scandir(folder or ".") if one.name.lower().endswith(".gguf")][:NEAR_FILES]
    except (OSError, ValueError):
        return []
    close = difflib.get_close_matches(name.lower(), [one.lower() for one in names], n=3, cutoff=0.6) if name else []
    by_lower = {one.lower(): one for one in names}
    return [os.path.join(folder, by_lower[one]) for one in close]


def kept_path(given: str | os.PathLike[str]) -> str:
    """A model as settings keep it that go to other processes: a name as it is, the path of a file from the root."""
    text = os.fspath(given)
    _check_null(text, "model")
    if isinstance(given, str) and is_name(given):
        return text
    return os.path.abspath(os.path.expanduser(text))


def is_name(given: str) -> bool:
    """Whether a text is meant as a name: of the Hub, or of a model of the store where no file has it."""
    try:
        if read_hub_name(given) is not None:
            return True
    except ConfigError:
        return True
    return not is_path(given) and not os.path.exists(given)


def is_known(given: str) -> bool:
    """Whether a text is a name of a model on this machine."""
    if not given or len(given) > 256 or any(c.isspace() or c == "\0" for c in given):
        return False
    try:
        return Store().find(given) is not None
    except ConfigError:
        return True
