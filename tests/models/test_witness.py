"""The numpy twins against what transformers computed: a witness must be right before anything is held against it."""

import numpy as np
import pytest

from tests.models import naive
from tests.models.references import DATA, MODELS, path_of


@pytest.mark.sweep(40)
@pytest.mark.parametrize("name", MODELS)
def test_twin_agrees_with_transformers(name):
    """To what float32, in which the references were computed, leaves."""
    reference = np.load(DATA / "models" / f"{name}.npz")
    twin = naive.logits(path_of(name), reference["tokens"])[reference["rows"]]
    assert np.abs(twin - reference["logits"]).max() <= 5e-6 * reference["largest"]
