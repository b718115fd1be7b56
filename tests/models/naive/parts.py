"""Norms, activations and other small formulas, over the last axis."""

import math

import numpy as np


def rms(x, w, eps):
    """x / sqrt(mean(x^2) + eps) * w: Zhang and Sennrich 2019."""
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps) * w


def centred(x, w, b, eps):
    """(x - mean) / sqrt(variance + eps) * w + b: Ba et al. 2016."""
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt(np.square(d).mean(-1, keepdims=True) + eps) * w + b


def rms_norm(file, name, x):
    return rms(x, file.w[name + ".weight"], file.get("attention.layer_norm_rms_epsilon"))


def layer_norm(file, name, x):
    """Weight and bias are 1 and 0 where the file has none (OLMo has neither, Cohere and DBRX no bias)."""
    w, b = file.w.get(name + ".weight", 1.0), file.w.get(name + ".bias", 0.0)
    return centred(x, w, b, file.get("attention.layer_norm_epsilon"))


def sigmoid(x):
    return 0.5 * (1 + np.tanh(0.5 * x))


def silu(x):
    return x * sigmoid(x)


def gelu_erf(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def relu2(x):
    return np.square(np.maximum(x, 0))


def xielu(x, p, n, beta, eps):
    """Huang and Schlag 2024: the first two numbers before they are made positive, the second above beta."""
    p, n = softplus(p), beta + softplus(n)
    return np.where(x > 0, p * x * x, n * (np.expm1(np.minimum(x, eps)) - x)) + beta * x


def softplus(x):
    return np.logaddexp(0, x)


def softmax(x):
    p = np.exp(x - x.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def softcap(x, cap):
    """cap * tanh(x / cap): Gemma 2. No cap where there is none."""
    return cap * np.tanh(x / cap) if cap else x
