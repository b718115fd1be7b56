"""Logits of a model's file as the package computes them, compared with the numpy twin's."""

import numpy as np

import oxillama.gguf as gguf
from oxillama.core.runner import Runner
from oxillama.kernels.batch import Span
from oxillama.models import load_model

TOKENS = np.random.default_rng(0).integers(3, 380, 200).tolist()


def runner_of(path, overrides=None, context_size=None):
    with gguf.open(path, overrides=overrides) as file:
        model = load_model(file, num_threads=2, context_size=context_size)
    return Runner(model, num_threads=2, kv_type="f32", n_blocks=20)


def ours(path, overrides=None, context_size=None, tokens=TOKENS):
    runner = runner_of(path, overrides, context_size)
    return runner.forward([Span(tokens, 0, list(range(20)), "all")])


def agree(a, b):
    assert np.abs(a - b).max() <= 2e-6 * np.abs(b).max()
