"""Sessions to files and back, beside copying such a file and computing the session again."""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from .common import load_engine, tokens

REPEATS = 15


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def ratio(a: Callable[[], object], b: Callable[[], object]) -> float:
    """Seconds of a by those of b, measured in turns, each from a disk that has nothing to write: so that what one left
    to be written isn't waited for by the other."""
    found = []
    for _ in range(REPEATS):
        os.sync()
        first = seconds(a)
        os.sync()
        found.append(first / seconds(b))
    return statistics.median(found)


class Snapshots:
    """A session of 1,000 tokens (or as many as the context holds) of OXILLAMA_BENCH_MODEL."""

    timeout = 900
    warmup_time = 0

    def setup(self) -> None:
        self.engine = load_engine()
        ids = tokens(self.engine, min(1000, self.engine.context_size - 40))
        self.folder = Path(tempfile.mkdtemp(dir=os.environ.get("OXILLAMA_BENCH_FOLDER")))
        self.prefill_seconds = seconds(lambda: self.engine.prefill(ids))
        self.engine.snapshot(self.folder / "session")
        self.engine.prefill(ids[:32])
        self.data = self.engine.snapshot_bytes()

    def teardown(self) -> None:
        self.engine.close()
        shutil.rmtree(self.folder)

    def time_save(self) -> None:
        self.engine.snapshot(self.folder / "again")

    def time_save_what_is_new(self) -> None:
        self.engine.snapshot(self.folder / "more", base=self.folder / "session")

    def time_save_shared(self) -> None:
        self.engine.snapshot(self.folder / "shared", shared=True)

    def time_save_bytes(self) -> None:
        self.engine.snapshot_bytes()

    def time_load(self) -> None:
        self.engine.resume(self.folder / "session").close()

    def time_load_bytes(self) -> None:
        self.engine.resume(self.data).close()

    def time_copy(self) -> None:
        shutil.copyfile(self.folder / "session", self.folder / "copy")

    def copy_to_disk(self) -> None:
        """A copy is safe when it is flushed, as a save is."""
        self.time_copy()
        descriptor = os.open(self.folder / "copy", os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    def track_save_of_copy(self) -> float:
        return ratio(self.time_copy, self.time_save)

    def track_save_of_flushed_copy(self) -> float:
        return ratio(self.copy_to_disk, self.time_save)

    def track_load_of_copy(self) -> float:
        return ratio(self.time_copy, self.time_load)

    def track_load_of_prefill(self) -> float:
        return self.prefill_seconds / statistics.median(seconds(self.time_load) for _ in range(9))

    def track_save_of_prefill(self) -> float:
        return self.prefill_seconds / statistics.median(seconds(self.time_save) for _ in range(9))

    def track_bytes(self) -> int:
        return (self.folder / "session").stat().st_size

    track_bytes.unit = "bytes"  # type: ignore[attr-defined]
