"""Packed weights: panels in a file that processes map and share, made once."""

from oxillama.models.packed.cache import Cache
from oxillama.models.packed.placing import find_packed, pack_model, place_packed, verify_model

__all__ = ["Cache", "find_packed", "pack_model", "place_packed", "verify_model"]
