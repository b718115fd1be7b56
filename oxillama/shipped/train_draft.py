"""Train the draft model of the model that ships: a tenth of its size, same tokenizer, made to predict its next token.

    pip install -e ".[train]"
    python oxillama/shipped/train_draft.py                             # writes oxillama/shipped/default-draft.gguf

The one that ships was made in two runs, the first left while its learning rate was high:

    python oxillama/shipped/train_draft.py --until 600 --out draft.gguf
    python oxillama/shipped/train_draft.py --start draft.gguf --seed 2 --rate 4e-3 --steps 1100

Prompts come from the corpus that the teacher was trained on (``train_data``), and the teacher itself answers them, in
the ways that it is asked (``STYLES``): what a draft meets is its teacher's text, not the corpus. At each token of an
answer the draft learns the teacher's whole distribution (``distance``). Everything is seeded, as in ``train_default``.
"""

from __future__ import annotations

import argparse
import math
import re
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from train_data import (
    ASSISTANT,
    BOS,
    END,
    EOS,
    SPECIAL_TOKENS,
    Batch,
    Document,
    Encoded,
    encode_document,
    packed_batches,
    single_batches,
    write_document,
)
from train_default import LONG_SHARE, TOKENS, descend, learning_rate, make_optimizers, set_rate
from train_export import export_gguf
from train_model import SHAPES, Params, Shape, forward, init_params, logits

import oxillama

PEAK_RATE = 8e-3
PROMPTS = 64  # answered in one batch
MAX_ANSWER = 500  # tokens
PLAIN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
CUT = {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.0, "repetition_penalty": 1.1}
STYLES: list[dict[str, float]] = [{"temperature": 0.0, **PLAIN}, {"temperature": 0.8, **PLAIN}, CUT]


def read_weights(path: Path) -> tuple[Params, dict[str, object]]:
    """Weights in float32, and the tokenizer's metadata, of a file."""
    with oxillama.gguf.open(path) as file:
        params = {t.name: torch.from_numpy(t.dequantize()) for t in file.tensors.values()}
        vocabulary = {key: file.metadata[key] for key in file.metadata if key.startswith("tokenizer.")}
    return params, vocabulary


def starting_weights(shape: Shape, start: Path | None, seed: int) -> Params:
    """Weights of an earlier run, or random ones."""
    if start is None:
        return init_params(shape, seed)
    return {name: weight.requires_grad_() for name, weight in read_weights(start)[0].items()}


def earlier_runs(start: Path | None) -> str:
    """Description of a draft's earlier runs."""
    if start is None:
        return ""
    with oxillama.gguf.open(start) as file:
        return re.search(r"\((seed [^)]*)\); no other", file.metadata.get_str("general.description"))[1] + "; then "


def cut_prompt(engine: oxillama.Engine, r: Random, document: Document) -> list[int]:
    """Tokens of a document up to an answer, or up to some word of a bare story."""
    special = {name: index for index, name in enumerate(SPECIAL_TOKENS)}

    def encode(text: str) -> list[int]:
        return engine.tokenize(text, add_special=False)

    if isinstance(document, str):
        return [special[BOS], *encode(document)[: r.choice((0, 1, 2, 4, 8, 16, 64))]]
    answers = [i for i, (role, _) in enumerate(document) if role == "assistant"]
    return [*encode_document(encode, document[: r.choice(answers)])[0], special[ASSISTANT]]


def answered(engine: oxillama.Engine, seed: str) -> Iterator[Encoded]:
    """Endless prompts with the teacher's answers; only the answers are learned."""
    r, index = Random(seed), {name: index for index, name in enumerate(SPECIAL_TOKENS)}
    while True:
        for style in STYLES:
            documents = [write_document(r) for _ in range(PROMPTS)]
            prompts = [cut_prompt(engine, r, document) for document in documents]
            answers = engine.generate(prompts, max_tokens=MAX_ANSWER, seed=r.randrange(1 << 31), **style)
            for document, prompt, answer in zip(documents, prompts, answers, strict=True):
                end = [index[EOS if isinstance(document, str) else END]] if answer.finish_reason == "stop" else []
                body = [*answer.token_ids, *end]
                yield [*prompt, *body], [False] * len(prompt) + [True] * len(body)


def make_batches(engine: oxillama.Engine, seed: int, steps: int, length: int) -> Iterator[Batch]:
    """One batch a step: rows of one answer each, and of several for the last steps."""
    single = single_batches(answered(engine, f"single {seed}"), Random(f"order {seed}"), TOKENS)
    yield from islice(single, math.ceil(steps * (1 - LONG_SHARE)))
    yield from packed_batches(answered(engine, f"packed {seed}"), TOKENS, length)


def distance(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Distance of a draft's logits [n, vocabulary] from its teacher's, mean over n.

    KL(teacher || student), which teaches the whole distribution, and the total variation: the share of draws that a
    verifier rejects (1 - sum of min(p, q); Leviathan et al. 2023).
    """
    p, q = teacher.log_softmax(-1), student.log_softmax(-1)
    divergence = F.kl_div(q, p, log_target=True, reduction="batchmean")
    return divergence + (q.exp() - p.exp()).abs().sum(-1).mean() / 2


def train_step(
    params: Params,
    shape: Shape,
    teacher: tuple[Params, Shape],
    optimizers: list[torch.optim.Optimizer],
    ids: torch.Tensor,
    mask: torch.Tensor,
) -> tuple[float, float]:
    """One step on ids [rows, length + 1]; returns the distance, and how often the first choices are equal."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            wanted = logits(teacher[0], forward(*teacher, ids[:, :-1])[mask[:, 1:]])
        found = logits(params, forward(params, shape, ids[:, :-1])[mask[:, 1:]])
        loss = distance(found, wanted)
    descend(loss, params, optimizers)
    equal = (found.argmax(-1) == wanted.argmax(-1)).float().mean()
    return float(loss.detach()), float(equal)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train the draft model of the model that ships with oxillama.")
    parser.add_argument("--teacher", type=Path, default=Path(__file__).with_name("default.gguf"))
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("default-draft.gguf"))
    parser.add_argument("--steps", type=int, default=2600, help="optimiser steps of 4096 tokens")
    parser.add_argument("--until", type=int, help="leave off after this step; the learning rate falls over --steps")
    parser.add_argument("--start", type=Path, help="a draft to go on with, instead of random weights")
    parser.add_argument("--rate", type=float, default=PEAK_RATE, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--export-every", type=int, default=500, help="also write the file every so many steps")
    return parser.parse_args()


def main() -> None:
    """Train, report every 25 steps, and export."""
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    (weights, vocabulary), teacher_shape = read_weights(args.teacher), SHAPES["default"]
    shape, started = SHAPES["draft"], time.perf_counter()
    params = starting_weights(shape, args.start, args.seed)
    optimizers = make_optimizers(params)
    sizes = [sum(p.numel() for p in of.values()) for of in (params, weights)]
    print(f"{sizes[0]} parameters, {100 * sizes[0] / sizes[1]:.1f} % of the teacher's", flush=True)
    recent, last, before = torch.zeros(2), args.until or args.steps, earlier_runs(args.start)
    with oxillama.load(args.teacher, num_threads=args.threads) as engine:
        batches = make_batches(engine, args.seed, args.steps, shape.context)
        for step, (ids, mask) in enumerate(islice(batches, last)):
            set_rate(optimizers, learning_rate(step, args.steps, args.rate))
            rows = torch.from_numpy(ids), torch.from_numpy(mask)
            recent += torch.tensor(train_step(params, shape, (weights, teacher_shape), optimizers, *rows))
            done = step + 1
            if done % 25 == 0:
                loss, equal = (recent / 25).tolist()
                seconds = time.perf_counter() - started
                print(f"step {done} distance {loss:.4f} equal {equal:.4f} after {seconds:.0f} s", flush=True)
                recent.zero_()
            if done % args.export_every == 0 or done == last:
                made = f"{before}seed {args.seed}, {done} steps, {done * TOKENS} tokens"
                export_gguf(args.out, "draft", shape, params, vocabulary, made)


if __name__ == "__main__":
    main()
