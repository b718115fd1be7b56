"""Tables of every kind that mappers take, of the same columns, and their rows again as Python values."""

import numpy as np
import pytest

KINDS = ("dict", "arrays", "arrow", "record batch", "pandas", "polars")
LIBRARIES = {"arrow": "pyarrow", "record batch": "pyarrow", "pandas": "pandas", "polars": "polars"}


def made(kind, columns):
    """A table of a kind. Skips the test if its library is not installed."""
    if kind in LIBRARIES:
        pytest.importorskip(LIBRARIES[kind])
    if kind == "dict":
        return {name: list(cells) for name, cells in columns.items()}
    if kind == "arrays":
        return {name: array(cells) for name, cells in columns.items()}
    if kind == "pandas":
        import pandas as pd

        n = len(next(iter(columns.values())))
        return pd.DataFrame(columns, index=pd.Index(range(7, 7 + 2 * n, 2), name="place"))
    if kind == "polars":
        import polars as pl

        return pl.DataFrame(columns)
    import pyarrow as pa

    return pa.table(columns) if kind == "arrow" else pa.record_batch(columns)


def array(cells):
    found = np.empty(len(cells), object)
    found[:] = cells
    return found


def cells(table, name):
    """A column as a list; what stands for a null is None, arrays are lists."""
    column = table[name]
    if hasattr(column, "to_pylist"):
        return column.to_pylist()
    if hasattr(column, "isna"):
        return [None if null else listed(cell) for cell, null in zip(column.tolist(), column.isna(), strict=True)]
    return [listed(cell) for cell in (column.to_list() if hasattr(column, "to_list") else column)]


def listed(cell):
    return cell.tolist() if isinstance(cell, np.ndarray | np.generic) else cell


def names(table):
    if isinstance(table, dict):
        return list(table)
    return list(table.schema.names if hasattr(table, "num_rows") else table.columns)
