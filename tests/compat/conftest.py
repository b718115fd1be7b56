"""Models that the tests of this folder share."""

import pytest

import oxillama.compat as llama_cpp
from oxillama.core.loading import shipped_model


@pytest.fixture(scope="package")
def model():
    """The shipped model, with the logits of all tokens."""
    with llama_cpp.Llama(shipped_model(), n_ctx=256, logits_all=True, seed=7, verbose=False) as loaded:
        yield loaded
