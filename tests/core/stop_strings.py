"""Stop strings by brute force, and texts in which they overlap."""

from hypothesis import strategies as st


def search(stops, text):
    """By brute force: the leftmost place of any stop string in the whole text."""
    places = [text.find(s) for s in stops if s in text]
    return (text[: min(places)], True) if places else (text, False)


# Two letters make every kind of overlap likely.
TEXT = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=4)
