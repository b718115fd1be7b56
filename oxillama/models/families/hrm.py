"""HRM-Text: Sapient Intelligence, 2026. Gated attention, norms without weights, stacks gone through in turns."""

from oxillama.models.hierarchical import Hierarchical, read_hierarchical
from oxillama.models.registry import Architecture, register
from oxillama.models.traits import Traits

HRM_TEXT = Traits(rope="neox", norm="rms_plain", gate="sigmoid", by_index=True, keys=frozenset({"embedding_scale"}))

register(Architecture("hrm_text", "HRM-Text 1B", HRM_TEXT, build=Hierarchical, read_spec=read_hierarchical))
