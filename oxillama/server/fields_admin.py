"""Field tables of adapters and administration."""

from __future__ import annotations

from oxillama.server.field_types import Field, Record, Text
from oxillama.server.fields_sampling import refused

__all__ = ["LOAD_ADAPTER", "MODEL_NAME", "NOTHING", "UNLOAD_ADAPTER"]

NAME = Field("lora_name", Text(1, 256), "of the adapter", required=True)
BASE = Field("base_model", Text(1, 256), "the model that it is of; default: the first")
LOAD_ADAPTER = Record((
    NAME,
    Field("lora_path", Text(1, 4096), "a file or folder below `--lora-dir`", required=True),
    BASE,
    refused("load_inplace", "unload it first", False),
))  # fmt: skip
UNLOAD_ADAPTER = Record((NAME, BASE, refused("lora_int_id", "give lora_name")))
MODEL_NAME = Record((Field("model", Text(1, 256), "of the server's", required=True),))
NOTHING = Record(())
