"""Tables: rows through a mapper, against the prompts alone through `Engine.batch`."""

import statistics
import time
from typing import Any

import oxillama.data as oxd

from .common import STORY, load_engine

ROWS = 256
OPTIONS: dict[str, Any] = {"max_tokens": 4, "temperature": 0.0, "ignore_eos": True}


class Overhead:
    """Time of CPU of a mapper as a ratio of that of `Engine.batch` with the same prompts; 1 costs nothing.

    Texts of 4 tokens with the shipped model are the worst case: other models and texts only take longer.
    """

    params = ("dict", "pyarrow", "pandas", "polars", "a row at a time", "a seed for each row")
    param_names = ("table",)
    timeout = 300

    def setup(self, table: str) -> None:
        self.engine = load_engine()
        self.prompts = [f"{STORY[i % 40 :]} Number {i}:" for i in range(ROWS)]
        columns = {"text": self.prompts, "n": list(range(ROWS))}
        if table in ("dict", *self.params[4:]):
            self.batch: object = columns
        elif table == "pyarrow":
            import pyarrow as pa

            self.batch = pa.table(columns)
        elif table == "pandas":
            import pandas as pd

            self.batch = pd.DataFrame(columns)
        else:
            import polars as pl

            self.batch = pl.DataFrame(columns)
        own: dict[str, Any] = {"seed": oxd.col("n")} if table == "a seed for each row" else {}
        self.mapper = oxd.Generate(self.engine, prompt="text", details=True, **OPTIONS, **own)

    def teardown(self, table: str) -> None:
        self.engine.close()

    def track_ratio(self, table: str) -> float:
        ratios = []
        for i in range(8):
            plain, mapped = self.plain(), self.mapped(table)
            if i:  # the first finds nothing in the prefix cache
                ratios.append(mapped / plain)
        return statistics.median(ratios)

    def plain(self) -> float:
        began = time.process_time()
        for _ in self.engine.batch(self.prompts, seed=1, **OPTIONS):
            pass
        return time.process_time() - began

    def mapped(self, table: str) -> float:
        began = time.process_time()
        if table == "a row at a time":
            rows = ({"text": [text], "n": [n]} for n, text in enumerate(self.prompts))
            for _ in self.mapper.map(rows):
                pass
        else:
            self.mapper(self.batch)
        return time.process_time() - began
