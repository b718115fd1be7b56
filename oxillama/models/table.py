"""A tensor whose rows are looked up, as those of an embedding table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oxillama.gguf import TensorInfo
from oxillama.kernels.files import read_rows
from oxillama.kernels.matmul import embed
from oxillama.kernels.rows import Rows, Workspace


class Table:
    """Rows [n, dim] that stay in the model's file and are read when they are asked for.

    That is a microsecond each, and takes no memory for rows that are never looked up. Of a model in memory they are
    looked up there.
    """

    def __init__(self, info: TensorInfo, dim: int) -> None:
        self.type, self.dim, self.n = info.type, dim, info.n_values // dim
        self._source, self._offset = info.source, info.offset
        self._row_bytes = info.nbytes // self.n
        self._data = info.data if info.source is None else info.data[:0]

    def rows(self, workspace: Workspace, ids: NDArray[np.int32]) -> Rows:
        """The rows ``ids``, dequantised: Rows [len(ids), dim].

        Raises GenerateError for one that there isn't, ModelFileError if the file was changed or can't be read.
        """
        source = self._source
        if source is None:
            return embed(workspace, self._data, self.type, self.dim, ids)
        found = np.empty(len(ids) * self._row_bytes, np.uint8)
        status = read_rows(source.fd, self._offset, self._row_bytes, self.n, ids, found)
        if status:
            raise source.failed(status)
        source.check()
        return embed(workspace, found, self.type, self.dim, np.arange(len(ids), dtype=np.int32))
