"""Shapes of answers, as they were recorded of the replaced package."""

import json
from pathlib import Path

SHAPES = json.loads((Path(__file__).parents[1] / "data/compat/shapes.json").read_text())["shapes"]


def shape(value):
    """Keys in their order and types, lists by their first item."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return type(value).__name__
