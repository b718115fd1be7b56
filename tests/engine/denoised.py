"""Denoising as the authors' code has it, in numpy: LLaDA's and Dream's, without chance.

Nie et al., "Large Language Diffusion Models", 2025; Ye et al., "Dream 7B", 2025. ``logits``: of a whole text.
"""

import numpy as np


def softmax(x):
    p = np.exp(x - x.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def without(x, mask):
    x = x.astype(np.float64)
    x[..., mask] = -np.inf
    return x


def llada(logits, prompt, mask, *, steps, length, block, cfg=0.0):
    x = np.array([*prompt, *[mask] * length])
    n_prompt, blocks = len(prompt), length // block
    for i in range(blocks):
        end = n_prompt + (i + 1) * block
        for step in range(steps // blocks):
            base, remainder = divmod(block, steps // blocks)
            masked = x == mask
            rows = logits(x.tolist())
            if cfg:
                bare = x.copy()
                bare[:n_prompt] = mask
                other = logits(bare.tolist()).astype(np.float64)
                rows = other + (cfg + 1) * (rows - other)
            rows = without(rows, mask)
            best = rows.argmax(-1)
            sure = np.take_along_axis(softmax(rows), best[:, None], 1)[:, 0]
            sure[end:] = -np.inf
            sure = np.where(masked, sure, -np.inf)
            for place in np.argsort(-sure, kind="stable")[: base + (step < remainder)]:
                x[place] = best[place]
    return x[n_prompt:].tolist()


def dream(logits, prompt, mask, *, steps, length, order, eps=1e-3, top_p=1.0, top_k=0, shift=True):
    x = np.array([*prompt, *[mask] * length])
    times = np.linspace(1, eps, steps + 1)
    for i in range(steps):
        places = np.flatnonzero(x == mask)
        rows = logits(x.tolist())
        rows = without((np.concatenate([rows[:1], rows[:-1]]) if shift else rows)[places], mask)
        rows = cut(rows, top_p, top_k)
        p = softmax(rows)
        best, ordered = p.argmax(-1), np.sort(p, axis=-1)
        sure = surety(order, p, ordered)
        n = int(len(places) * (1 - times[i + 1] / times[i])) if i < steps - 1 else len(places)
        for j in np.argsort(-sure, kind="stable")[:n]:
            x[places[j]] = best[j]
    return x[len(prompt) :].tolist()


def surety(order, p, ordered):
    match order:
        case "maskgit_plus":
            return ordered[:, -1]
        case "topk_margin":
            return ordered[:, -1] - ordered[:, -2]
        case "entropy":
            return (p * np.log(p + 1e-10)).sum(-1)


def cut(rows, top_p, top_k):
    if top_p < 1:
        order = np.argsort(-rows, axis=-1, kind="stable")
        sums = np.cumsum(softmax(np.take_along_axis(rows, order, 1)), axis=-1)
        gone = sums > top_p
        gone[:, 1:], gone[:, 0] = gone[:, :-1].copy(), False
        mask = np.zeros_like(gone)
        np.put_along_axis(mask, order, gone, 1)
        rows = np.where(mask, -np.inf, rows)
    if top_k:
        rows = np.where(rows < np.sort(rows, axis=-1)[:, -top_k, None], -np.inf, rows)
    return rows
