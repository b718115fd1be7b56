"""Models of a folder while a server runs: files that come, and files that go."""

from __future__ import annotations

from oxillama._util.threads import in_thread
from oxillama.server.model_folder import FolderLoader, ModelFolder
from oxillama.server.models import Models, ServedModel

__all__ = ["is_of_folder", "look_at_folder"]


async def look_at_folder(models: Models) -> None:
    """Serves what is in the folder of models now: new files, and none that are gone, unless a request uses them."""
    folder = models.folder
    if folder is None:
        return
    await in_thread(folder.scan)
    wanted = wanted_models(models, folder)
    if list(wanted.items()) != list(models.all.items()):
        models.serve_only(wanted)


def wanted_models(models: Models, folder: ModelFolder) -> dict[str, ServedModel]:
    """The models to serve: those that are served, less those whose files are gone, and those of new files."""
    kept = {name: model for name, model in models.all.items() if stays(model, folder)}
    taken = {alias for model in kept.values() for alias in (model.id, *model.aliases)}
    added = [ServedModel(**folder.fields_of(entry)) for name, entry in folder.entries.items() if name not in taken]
    for model in added:
        model.aliases = tuple(alias for alias in model.aliases if alias not in taken)
        taken |= {model.id, *model.aliases}
        kept[model.id] = model
    if kept:
        return kept
    shipped = next((model for model in models.all.values() if is_of_folder(model) and model.path is None), None)
    shipped = shipped or ServedModel(**folder.shipped())
    return {shipped.id: shipped}


def stays(model: ServedModel, folder: ModelFolder) -> bool:
    """Whether a model is served on: it isn't of the folder, its file is there, or it is in use."""
    if not is_of_folder(model) or model.n_open or model.state == "loading":
        return True
    entry = folder.entries.get(model.id)
    if entry is None or entry.path != model.path:
        return False
    return model.files == tuple(part for part in entry.parts if part != entry.path)


def is_of_folder(model: ServedModel) -> bool:
    """Whether a model is served because its file is in the folder of models, or because there is none."""
    return isinstance(model.load, FolderLoader)
