"""A model's file that is cut off before each line of the package that runs while something is done with the file.

`python -m tests.faults.cut SCENE EVERY` cuts it before every so many lines in turn, and prints what was wrong then: an
error that is not one of ours, a result that is not that of the whole file, a file that was written and is neither the
old nor the new one. It is a process of its own because a page that is gone may end it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import numpy as np

import oxillama as ox
from oxillama.core.loading import shipped_model
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.gguf.source import FileSource
from tests.faults.signals import Lines

ORIGINAL = Path(shipped_model()).read_bytes()
MODEL, OLD = "model.gguf", b"what was there before"
SIZES = 0, os.sysconf("SC_PAGESIZE"), len(ORIGINAL) // 3, len(ORIGINAL) - 5000
PROMPT, OPTIONS = "Once upon a time", {"max_tokens": 3, "seed": 1, "ignore_eos": True}

Act = Callable[[], Any]
Scene = Callable[[Path, Path], Act]  # (the model's file, one to write) -> what is done


def loading(**options: Any) -> Scene:
    """What is loaded computes right as soon as the file is whole again, or isn't loaded."""

    def scene(path: Path, _: Path) -> Act:
        def act() -> Any:
            with ox.load(path, num_threads=2, **options) as engine:
                sys.settrace(None)
                path.write_bytes(ORIGINAL)
                with mock.patch.object(FileSource, "check", return_value=None):
                    return engine.generate(PROMPT, **OPTIONS).token_ids

        return act

    return scene


def computing(**options: Any) -> Scene:
    def scene(path: Path, _: Path) -> Act:
        engine = ox.load(path, num_threads=2, **options)

        def act() -> Any:
            ids = engine.generate(PROMPT, **OPTIONS).token_ids
            return ids, engine.forward_logits(ids).tobytes()

        return act

    return scene


def opening(path: Path, _: Path) -> Act:
    def act() -> Any:
        with ox.gguf.open(path) as file:
            return list(file.metadata.items()), {name: t.data.tobytes() for name, t in file.tensors.items()}

    return act


def decoding(path: Path, _: Path) -> Act:
    file = ox.gguf.open(path)

    def act() -> Any:
        arrays = [v for v in file.metadata.values() if isinstance(v, ox.gguf.GGUFArray)]
        texts = [a.bytes_list()[:50] if a.item_type.name == "STRING" else a.numpy().tolist()[:50] for a in arrays]
        items = [(a[len(a) // 2], a[-1]) for a in arrays]
        return texts, items, [a.tolist() for a in arrays], [t.dequantize().tobytes() for t in file.tensors.values()]

    return act


def writing(write: Callable[[Path, Path], object], *, opened: bool = False) -> Scene:
    def scene(path: Path, destination: Path) -> Act:
        source = ox.gguf.open(path) if opened else path

        def act() -> Any:
            write(source, destination)  # type: ignore[arg-type]
            return destination.read_bytes()

        return act

    return scene


def rewritten(file: Any, destination: Path) -> None:
    ox.gguf.write_gguf(destination, file.metadata, file.tensors)


def drafted(path: Path, destination: Path) -> None:
    ox.synthesise_draft(path, destination=destination, type="Q4_0")


SCENES: dict[str, Scene] = {
    "load": loading(),
    "load, mapped": loading(repack=False),
    "load, paged": loading(offload=len(ORIGINAL) // 3),
    "steps, mapped": computing(repack=False),
    "steps, in memory": computing(),
    "steps, paged": computing(offload=len(ORIGINAL) // 3),
    "open": opening,
    "decode": decoding,
    "copy": writing(ox.gguf.copy, opened=True),  # type: ignore[arg-type]
    "write": writing(rewritten, opened=True),
    "quantize": writing(lambda path, to: ox.gguf.quantize_file(path, to, "Q8_0", allow_requantize=True)),
    "draft": writing(drafted),
    "tokenizer": lambda path, _: lambda: ox.Tokenizer.from_gguf(path).encode(PROMPT),
    "fingerprint": lambda path, _: lambda: ModelFingerprint.of(path).tensor_hash + ModelFingerprint.of(path).tail_hash,
}


class Cutting(Lines):
    """Before line n of the package, the file is cut off."""

    def __init__(self, path: Path, n: int, size: int) -> None:
        super().__init__(n)
        self.path, self.size = path, size

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        before = len(self.places)
        found = super().__call__(frame, event, arg)
        if before < self.n == len(self.places):
            os.truncate(self.path, self.size)
        return found


def run(scene: Scene, folder: Path, n: int, size: int) -> tuple[Any, BaseException | None, Cutting]:
    """What came of it, by result or error, and what was seen of lines."""
    path, destination = folder / MODEL, folder / "written.gguf"
    path.unlink(missing_ok=True)  # others may still have it open
    path.write_bytes(ORIGINAL)
    destination.write_bytes(OLD)
    lines = Cutting(path, n, size)
    act = scene(path, destination)
    sys.settrace(lines)
    try:
        return act(), None, lines
    except Exception as error:
        return None, error, lines
    finally:
        sys.settrace(None)


def losses(name: str, folder: Path, every: int, first: int = 1) -> list[str]:
    scene, found, written = SCENES[name], [], folder / "written.gguf"
    expected, error, lines = run(scene, folder, 0, 0)
    if error is not None:
        raise error
    new, n_errors = written.read_bytes(), 0
    for i, n in enumerate(range(first, len(lines.places) + 1, every)):
        size = SIZES[i % len(SIZES)]
        result, error, cut = run(scene, folder, n, size)
        where = f"cut to {size} bytes before line {n}, {cut.places[n - 1 : n]}"
        n_errors += error is not None
        if error is not None and not isinstance(error, ox.LoadError):
            found.append(f"{where}: {error!r}")
        if error is None and not same(result, expected):
            found.append(f"{where}: another result")
        if written.read_bytes() not in (OLD, new) or {p.name for p in folder.iterdir()} != {MODEL, written.name}:
            found.append(f"{where}: something else was written")
    if not n_errors:
        found.append("no cut was noticed at all")
    return found


def same(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else a == b


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        for line in losses(sys.argv[1], Path(place), int(sys.argv[2])):
            print(line)
