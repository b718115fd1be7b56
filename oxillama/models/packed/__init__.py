"""Packed weights: panels in a file that processes map and share, made once."""

from oxillama.models.packed.cache import Cache
from oxillama.models.packed.placing import pack_model, place_packed, verify_model

__all__ = ["Cache", "pack_model", "place_packed", "verify_model"]
