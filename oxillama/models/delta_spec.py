"""Sizes of layers with the gated delta rule, and which layers have it."""

from __future__ import annotations

from dataclasses import dataclass

from oxillama.errors import LoadError
from oxillama.gguf import Metadata
from oxillama.layer_state import RecurrentShape, panels

__all__ = ["RECURRENT_LAYERS", "DeltaSpec", "read_delta_spec"]

MAX_STATE = 1 << 28  # values of one layer
RECURRENT_LAYERS = "attention.recurrent_layers"


@dataclass(frozen=True)
class DeltaSpec:
    """``n_heads`` of values, each ``v_dim`` wide, that share ``n_keys`` of queries and of keys, each ``k_dim`` wide.

    A convolution of ``n_taps`` goes over all of them. ``neighbours``: heads that share one of keys follow each other;
    otherwise their numbers are equal modulo ``n_keys``. ``joint``: one tensor has what goes into them, head of keys by
    head of keys.
    """

    n_taps: int
    n_keys: int
    n_heads: int
    k_dim: int
    v_dim: int
    neighbours: bool
    joint: bool = False

    @property
    def n_inner(self) -> int:
        """Values of all heads."""
        return self.n_heads * self.v_dim

    @property
    def n_convolved(self) -> int:
        return 2 * self.n_keys * self.k_dim + self.n_inner

    @property
    def rule_at(self) -> int:
        """Offset of the rule's state in a slot, behind the convolution's."""
        return panels((self.n_taps - 1) * self.n_convolved)

    @property
    def shape(self) -> RecurrentShape:
        """Shape of the state that a layer keeps of a sequence."""
        return RecurrentShape(self.rule_at + self.n_heads * (panels(self.v_dim) * self.k_dim + 16))


def read_delta_spec(m: Metadata, *, neighbours: bool) -> DeltaSpec:
    """Reads the keys ``<arch>.ssm.*``; LoadError names the keys and the values that can't be."""
    key = f"{m.arch}.ssm."
    n_taps = m.get_int(key + "conv_kernel", minimum=1, maximum=256)
    n_inner = m.get_int(key + "inner_size", minimum=1, maximum=1 << 20)
    k_dim = m.get_int(key + "state_size", minimum=1, maximum=1 << 16)
    n_heads = m.get_int(key + "time_step_rank", minimum=1, maximum=1 << 16)
    n_keys = m.get_int(key + "group_count", minimum=1, maximum=1 << 16)
    if n_inner % n_heads:
        raise LoadError(f"{key}inner_size is {n_inner}, which {key}time_step_rank {n_heads} does not divide")
    if n_heads % n_keys:
        raise LoadError(f"{key}time_step_rank is {n_heads}, which {key}group_count {n_keys} does not divide")
    spec = DeltaSpec(n_taps, n_keys, n_heads, k_dim, n_inner // n_heads, neighbours)
    if spec.shape.n_values > MAX_STATE:
        raise LoadError(
            f"{key}inner_size {n_inner}, {key}state_size {k_dim} and {key}conv_kernel {n_taps} make a state of "
            f"{spec.shape.n_values} values in each layer; at most {MAX_STATE} can be"
        )
    return spec
