"""Sessions to files and back, beside copying such a file and computing the session again."""

import os
import shutil
import tempfile
from pathlib import Path

from .common import load_engine, tokens


class Snapshots:
    """A session of 1,000 tokens (or as many as the context holds) of OXILLAMA_BENCH_MODEL."""

    timeout = 900
    warmup_time = 0

    def setup(self) -> None:
        self.engine = load_engine()
        ids = tokens(self.engine, min(1000, self.engine.context_size - 40))
        self.folder = Path(tempfile.mkdtemp(dir=os.environ.get("OXILLAMA_BENCH_FOLDER")))
        self.engine.prefill(ids)
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

    def track_bytes(self) -> int:
        return (self.folder / "session").stat().st_size

    track_bytes.unit = "bytes"  # type: ignore[attr-defined]
