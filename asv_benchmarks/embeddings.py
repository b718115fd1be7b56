"""Embeddings and reranking side by side: oxillama, sentence-transformers on torch, llama.cpp.

    python asv_benchmarks/embeddings.py FOLDER --torch-python PATH [--peer-python PATH] [--texts 10000] [--cpu]

FOLDER holds a BERT as sentence-transformers has it (config.json, vocab.txt, model.safetensors), of which GGUF files are
made beside it, and a cross-encoder with the same layers and a random head. Each engine runs in a process of its own,
loaded once; they embed the same short texts in turns, --rounds times, and medians are compared: of time, or with --cpu
of CPU time, which a busy machine spoils less. What they computed is compared, too: the least cosine with torch's.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import Process, in_turns, medians, serve
from numpy.typing import NDArray

TYPES = ("F16", "Q8_0")
DOCUMENTS = 100  # of one query
RANKER = "is_ranker"  # a file that tells the folder of a cross-encoder

# Names of transformers' BERT and of a GGUF file.
LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
ONCE = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
HEAD = {"pooler.dense": "cls", "classifier": "cls.output"}


def short_texts(words: list[str], n: int) -> list[str]:
    """Texts of 3 to 60 words, 12 in the median, always the same."""
    random = np.random.default_rng(1)
    lengths = np.clip(random.lognormal(np.log(12), 0.6, n), 3, 60).astype(int)
    return [" ".join(random.choice(words, length)) for length in lengths]


def whole_words(folder: Path) -> list[str]:
    vocabulary = (folder / "vocab.txt").read_text().splitlines()
    return [word for word in vocabulary if word.isascii() and word.isalpha() and len(word) > 2]


def convert(folder: Path, type: str) -> Path:
    """The GGUF file of a BERT in a folder, made if it is not there."""
    import oxillama

    path = folder / f"model-{type}.gguf"
    if path.exists():
        return path
    if type == "Q8_0":
        oxillama.gguf.quantize_file(convert(folder, "F16"), path, type)
        return path
    tensors = read_safetensors(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    names = {f"{their}.{part}": f"{our}.{part}" for their, our in ONCE.items() for part in ("weight", "bias")}
    for i in range(config["num_hidden_layers"]):
        for their, our in LAYER.items():
            names |= {f"encoder.layer.{i}.{their}.{p}": f"blk.{i}.{our}.{p}" for p in ("weight", "bias")}
    if "classifier.weight" in tensors:
        names |= {f"{their}.{part}": f"{our}.{part}" for their, our in HEAD.items() for part in ("weight", "bias")}
    writer = oxillama.gguf.GGUFWriter(path)
    for key, value in metadata(config, (folder / "vocab.txt").read_text().splitlines()).items():
        writer.add(key, value)
    for their, our in names.items():
        if their in tensors:
            data = tensors[their]
            half = data.ndim == 2 and our.startswith(("token_embd.", "blk."))
            writer.add_tensor(our, data.astype(np.float16) if half else data)
    writer.write()
    return path


def read_safetensors(path: Path) -> dict[str, NDArray[np.float32]]:
    """float32 tensors by name, without the name of the model before it."""
    data = path.read_bytes()
    n = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + n])
    found = {}
    for name, info in header.items():
        if name != "__metadata__" and info["dtype"] == "F32":
            first, end = (8 + n + at for at in info["data_offsets"])
            found[name.removeprefix("bert.")] = np.frombuffer(data[first:end], np.float32).reshape(info["shape"])
    return found


def metadata(config: dict[str, Any], vocabulary: list[str]) -> dict[str, object]:
    """As llama.cpp's converter writes it: a piece inside a word has no mark, one that begins a word has U+2581."""
    special = [word.startswith("[") and word.endswith("]") for word in vocabulary]
    tokens = [
        word if is_special else word[2:] if word.startswith("##") else "\u2581" + word
        for word, is_special in zip(vocabulary, special, strict=True)
    ]
    values = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.layer_norm_epsilon": config["layer_norm_eps"],
        "attention.causal": False,
        "pooling_type": 1,
    }
    ids = {"cls": "[CLS]", "bos": "[CLS]", "seperator": "[SEP]", "eos": "[SEP]", "unknown": "[UNK]", "padding": "[PAD]"}
    return {
        "general.architecture": "bert",
        **{f"bert.{key}": value for key, value in values.items()},
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.where(special, 3, 1).astype(np.int32),
        "tokenizer.ggml.token_type_count": config["type_vocab_size"],
        **{f"tokenizer.ggml.{key}_token_id": vocabulary.index(word) for key, word in ids.items()},
    }


Embed = Callable[[list[str]], NDArray[np.float32]]
Rank = Callable[[str, list[str]], list[float]]


def ours(path: str, threads: int) -> tuple[Embed, Rank]:
    import oxillama

    engine = oxillama.load(path, num_threads=threads)

    def rank(query: str, documents: list[str]) -> list[float]:
        return [one.score for one in sorted(engine.rerank(query, documents), key=lambda one: one.index)]

    return lambda texts: np.asarray(engine.embed(texts)), rank


def torch_side(path: str, threads: int) -> tuple[Embed, Rank]:
    import torch  # type: ignore[import-not-found,unused-ignore]
    from sentence_transformers import (  # type: ignore[import-not-found,unused-ignore]
        CrossEncoder,
        SentenceTransformer,
    )

    torch.set_num_threads(threads)
    is_ranker = (Path(path) / RANKER).exists()
    embedder = None if is_ranker else SentenceTransformer(path, device="cpu")
    ranker = CrossEncoder(path, device="cpu", activation_fn=torch.nn.Identity()) if is_ranker else None

    def embed(texts: list[str]) -> NDArray[np.float32]:
        assert embedder is not None
        return np.asarray(embedder.encode(texts, batch_size=32, normalize_embeddings=True))

    def rank(query: str, documents: list[str]) -> list[float]:
        assert ranker is not None
        return [float(score) for score in ranker.predict([(query, document) for document in documents])]

    return embed, rank


def peer_side(path: str, threads: int) -> tuple[Embed, Rank]:
    import llama_cpp  # type: ignore[import-not-found,unused-ignore]

    model = llama_cpp.Llama(
        path, embedding=True, n_ctx=512, n_batch=2048, n_ubatch=2048, n_threads=threads, n_threads_batch=threads,
        verbose=False,
    )  # fmt: skip
    return lambda texts: np.asarray(model.embed(texts, normalize=True)), lambda *_: []


SIDES = {"oxillama": ours, "torch": torch_side, "llama.cpp": peer_side}


def serve_side(kind: str, path: str, threads: int) -> None:
    """Answers each line, a JSON object of texts (and of a query), with seconds, CPU seconds and what was computed."""
    embed, rank = SIDES[kind](path, threads)

    def measure(line: str) -> dict[str, float]:
        work = json.loads(line)
        start, cpu = time.perf_counter(), time.process_time()
        query = work.get("query")
        found = embed(work["texts"]) if query is None else np.array(rank(query, work["texts"]))
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        if work.get("save"):
            np.save(work["save"], found)
        return {"seconds": seconds, "cpu": cpu}

    serve(measure)


def make_ranker(folder: str, out: str) -> None:
    """A cross-encoder with the layers of the BERT in a folder, and a random head; in the process that has torch."""
    import torch
    from transformers import (  # type: ignore[import-not-found,unused-ignore]
        AutoTokenizer,
        BertForSequenceClassification,
    )

    torch.manual_seed(1)
    BertForSequenceClassification.from_pretrained(folder, num_labels=1).save_pretrained(out)
    AutoTokenizer.from_pretrained(folder).save_pretrained(out)
    (Path(out) / "vocab.txt").write_bytes((Path(folder) / "vocab.txt").read_bytes())
    (Path(out) / RANKER).touch()


def side(kind: str, python: str, path: Path, threads: int) -> Process:
    """An engine in its process."""
    return Process([python, __file__, "--side", kind, path, "--threads", threads])


def taking_turns(sides: dict[str, Process], rounds: int, clock: str, **work: Any) -> dict[str, float]:
    """Median seconds of each side."""
    for one in sides.values():
        one.ask(work | {"texts": work["texts"][:200]})
    found = in_turns({name: partial(one.ask, work) for name, one in sides.items()}, rounds)
    return {name: medians(answers)[clock] for name, answers in found.items()}


def shown(title: str, medians: dict[str, float], n: int) -> None:
    print(title)
    base = medians["oxillama F16"]
    for name, seconds in medians.items():
        print(f"  {name:16} {n / seconds:8.0f} texts/s   oxillama F16 is {seconds / base:.2f} times as fast")


def compare(
    folder: Path, torch_python: str, peer_python: str | None, n: int, rounds: int, threads: int, clock: str
) -> None:
    texts = short_texts(whole_words(folder), n)
    sides = {f"oxillama {type}": side("oxillama", sys.executable, convert(folder, type), threads) for type in TYPES}
    sides["torch"] = side("torch", torch_python, folder, threads)
    if peer_python:
        for type in TYPES:
            sides[f"llama.cpp {type}"] = side("llama.cpp", peer_python, convert(folder, type), threads)
    shown(f"{n} texts", taking_turns(sides, rounds, clock, texts=texts), n)
    print_cosines(sides, folder, texts[:256])
    for one in sides.values():
        one.close()

    ranker = folder / "ranker"
    if not ranker.exists():
        subprocess.run([torch_python, __file__, "--make-ranker", str(folder), str(ranker)], check=True)
    sides = {f"oxillama {type}": side("oxillama", sys.executable, convert(ranker, type), threads) for type in TYPES}
    sides["torch"] = side("torch", torch_python, ranker, threads)
    documents = texts[:DOCUMENTS]
    medians = taking_turns(sides, 5 * rounds, clock, query=texts[-1], texts=documents)
    shown(f"a query and {DOCUMENTS} documents", medians, DOCUMENTS)


def print_cosines(sides: dict[str, Process], folder: Path, texts: list[str]) -> None:
    found = {}
    for name, one in sides.items():
        place = folder / "vectors.npy"
        one.ask({"texts": texts, "save": str(place)})
        found[name] = np.load(place)
        place.unlink()
    for name, vectors in found.items():
        print(f"  {name:16} least cosine with torch {float((vectors * found['torch']).sum(1).min()):.6f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--torch-python", metavar="PATH")
    parser.add_argument("--peer-python", metavar="PATH")
    parser.add_argument("--texts", type=int, default=10000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--side", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--make-ranker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        kind, path = args.side
        serve_side(kind, path, args.threads)
    elif args.make_ranker:
        trunk, out = args.make_ranker
        make_ranker(trunk, out)
    elif args.folder is None or args.torch_python is None:
        parser.error("FOLDER and --torch-python are needed")
    else:
        clock = "cpu" if args.cpu else "seconds"
        compare(args.folder, args.torch_python, args.peer_python, args.texts, args.rounds, args.threads, clock)


if __name__ == "__main__":
    main()
