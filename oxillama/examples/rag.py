"""Answers from your own documents: embeddings, ranking and generation in one file, without a framework.

    python -m oxillama.examples.rag "How long is the guarantee?" *.txt -m chat.gguf --embedder e.gguf --ranker r.gguf

Three steps: embeddings find the passages that are near the question, a ranking puts the best of them first, and the
model answers from those. Each may use a model of its own; without files, the small model that ships does all three.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import oxillama as ox

SAMPLE = [
    "The guarantee of our kettles is two years from the day of purchase.",
    "Chairs are delivered within a week, lamps within two days.",
    "The shop in Oslo is open from nine to five, and closed on Sundays.",
]


def passages(text: str, most: int = 600) -> list[str]:
    """Paragraphs of a text, joined to passages of up to `most` characters."""
    found: list[str] = []
    for paragraph in filter(None, (part.strip() for part in text.split("\n\n"))):
        if found and len(found[-1]) + len(paragraph) < most:
            found[-1] += "\n" + paragraph
        else:
            found.append(paragraph)
    return found


def read(file: Path) -> str:
    """A text file. Raises ConfigError if it isn't one; OSError."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ox.ConfigError(f"{file} is no text: {error}") from None


class Index:
    """Passages with their vectors."""

    def __init__(self, engine: ox.Engine, texts: list[str]) -> None:
        self.engine, self.texts = engine, texts
        self.vectors = self._vectors(texts)  # float32 [n, d], each of length 1

    def nearest(self, question: str, n: int) -> list[str]:
        """The n passages of the highest cosine with the question, the nearest first."""
        cosines = self.vectors @ self._vectors([question])[0]
        return [self.texts[i] for i in np.argsort(-cosines, kind="stable")[:n]]

    def _vectors(self, texts: list[str]) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = self.engine.embed(texts, pooling="mean")
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


def by_ranker(ranker: ox.Engine, question: str, texts: list[str]) -> list[str]:
    """The texts, best first, by the scores of a reranker."""
    return [texts[found.index] for found in ranker.rerank(question, texts)]


def by_likelihood(engine: ox.Engine, question: str, texts: list[str]) -> list[str]:
    """The texts, best first, by how likely each makes the question: the mean log-probability of its tokens after it.

    This needs no model of its own: every model that generates can tell.
    """
    ids = engine.tokenize(f"\nQuestion: {question}", add_special=False)
    prompts = [[*engine.tokenize(text), *ids] for text in texts]
    scored = engine.generate(prompts, max_tokens=0, prompt_logprobs=0)
    scores = [np.mean([t.logprob for t in (r.prompt_logprobs or [])[-len(ids) :] if t is not None]) for r in scored]
    return [texts[i] for i in np.argsort(-np.array(scores), kind="stable")]


def answer(engine: ox.Engine, question: str, texts: list[str]) -> ox.Completion:
    """An answer from the texts alone."""
    sources = "\n\n".join(f"[{i}] {text}" for i, text in enumerate(texts, 1))
    asked = f"Answer from these passages alone, and name the one you used.\n\n{sources}\n\nQuestion: {question}"
    return engine.chat([{"role": "user", "content": asked}], max_tokens=200, temperature=0.2, seed=1)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="an answer from documents")
    parser.add_argument("question", nargs="?", default="How long is the guarantee of a kettle?")
    parser.add_argument("files", nargs="*", type=Path, help="text files; without them, three sample passages")
    parser.add_argument("-m", "--model", help="GGUF file that answers")
    parser.add_argument("--embedder", help="GGUF file of an embedding model")
    parser.add_argument("--ranker", help="GGUF file of a reranker")
    a = parser.parse_args(arguments)
    texts = [text for file in a.files for text in passages(read(file))]
    if a.files and not texts:
        raise ox.ConfigError("there is no text in these files")
    texts = texts or SAMPLE
    engine = ox.load(a.model)
    embedder = ox.load(a.embedder) if a.embedder else engine
    near = Index(embedder, texts).nearest(a.question, n=20)
    best = by_ranker(ox.load(a.ranker), a.question, near) if a.ranker else by_likelihood(engine, a.question, near)
    for text in best[:3]:
        print(f"- {text}")
    print(answer(engine, a.question, best[:3]))


if __name__ == "__main__":
    try:
        main()
    except (ox.OxiLlamaError, OSError) as error:  # a file that is missing, or no model
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
