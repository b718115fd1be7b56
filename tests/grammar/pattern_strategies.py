"""Patterns for hypothesis: atoms that are repeated, put side by side, and made alternatives."""

from hypothesis import strategies as st

QUANTIFIERS = ("*", "+", "?", "{2}", "{1,2}", "{2,}", "{2,4}", "*?", "{0}")


def _quantified(inner):
    repeated = inner.filter(lambda p: p not in "^$").map(lambda p: f"(?:{p})")
    return st.one_of(
        st.tuples(repeated, st.sampled_from(QUANTIFIERS)).map("".join),
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
    )


def patterns(*atoms):
    """Patterns of up to eight of these."""
    return st.recursive(st.sampled_from(atoms), _quantified, max_leaves=8)
