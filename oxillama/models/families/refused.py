"""Architectures that are known and refused, because what would be computed is not what was published."""

from oxillama.models.registry import refuse

refuse(
    "grok",
    "its authors' code caps router scores, leaves the chosen experts' weights unnormalised and sharpens attention with "
    "distance, of which files say less than is needed",
)
