"""Mappers over tables: columns of prompts in, columns of answers, vectors or orders out, as an engine gives them.

>>> import oxillama.data as oxd
>>> answer = oxd.Generate(template="Once there was a {animal}", output="story", max_tokens=20, seed=1)
>>> table = answer({"animal": ["cat", "bear", None]})  # or a pyarrow, pandas or polars table: the same kind comes back
"""

from oxillama.data.columns import Column, col
from oxillama.data.embed import Embed
from oxillama.data.frameworks import daft, ray_processor
from oxillama.data.generate import Generate
from oxillama.data.mapper import Mapper
from oxillama.data.rerank import Rerank

__all__ = ["Column", "Embed", "Generate", "Mapper", "Rerank", "col", "daft", "ray_processor"]
