"""Tokenizer and batches: a byte-level BPE trained on the synthetic corpus, and rows packed with whole documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from random import Random

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from train_chat import Turn, story_turns, sum_drill, write_chat
from train_stories import write_story

BOS, EOS, END = "<|begin|>", "<|endoftext|>", "<|end|>"
USER, ASSISTANT, SYSTEM = "<|user|>", "<|assistant|>", "<|system|>"
SPECIAL_TOKENS = (BOS, EOS, USER, ASSISTANT, SYSTEM, END)  # ids 0..5
ROLE_TOKENS = {"user": USER, "assistant": ASSISTANT, "system": SYSTEM}
VOCABULARY_SIZE = 1536
MAX_LENGTH = 640  # of a document; few are longer

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + message['role'] + ': this model knows system, user and assistant') }}"
    "{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] | trim + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

Document = list[Turn] | str
Encode = Callable[[str], list[int]]  # ids of plain text, without special tokens
Encoded = tuple[list[int], list[bool]]
Batch = tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]


def write_document(r: Random) -> Document:
    """A bare story (str), a story on request, a drill in sums, or a conversation."""
    shape = r.random()
    if shape < 0.18:
        return write_story(r).text
    return story_turns(r) if shape < 0.44 else sum_drill(r) if shape < 0.66 else write_chat(r)


def train_tokenizer(seed: int, documents: int = 8000) -> Tokenizer:
    """Byte-level BPE whose pre-tokenizer is the one that GGUF calls "smollm": single digits, then the GPT-2 pattern."""
    r = Random(f"tokenizer {seed}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    corpus = (write_document(r) for _ in range(documents))
    texts = (doc if isinstance(doc, str) else "\n".join(text for _, text in doc) for doc in corpus)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode_document(encode: Encode, document: Document) -> Encoded:
    """Ids of a document, and for each id whether it is to be learned (what the user says is not)."""
    special = {name: index for index, name in enumerate(SPECIAL_TOKENS)}
    if isinstance(document, str):
        ids = [special[BOS], *encode(document), special[EOS]]
        return ids, [True] * len(ids)
    ids, learned = [special[BOS]], [False]
    for role, text in document:
        body = encode(text)
        ids += [special[ROLE_TOKENS[role]], *body, special[END]]
        learned += [False] + [role == "assistant"] * (len(body) + 1)
    return ids, learned


def pad(rows: list[Encoded], length: int) -> Batch:
    """Rows cut or filled up to a length; the filling (EOS) is not learned."""
    ids, learned = np.full((len(rows), length), 1, np.int64), np.zeros((len(rows), length), np.bool_)
    for i, (row_ids, row_learned) in enumerate(rows):
        ids[i, : len(row_ids)], learned[i, : len(row_ids)] = row_ids[:length], row_learned[:length]
    return ids, learned


def encoded_documents(encode: Encode, r: Random) -> Iterator[Encoded]:
    """Endless fresh documents."""
    while True:
        yield encode_document(encode, write_document(r))


def single_batches(documents: Iterator[Encoded], r: Random, tokens: int) -> Iterator[Batch]:
    """Endless batches of about so many tokens; a row is one document, and rows of a batch are of similar length."""
    while True:
        pool = sorted(islice(documents, 1024), key=lambda document: len(document[0]))
        ready: list[Batch] = []
        while pool:
            length = min(len(pool[-1][0]), MAX_LENGTH)
            rows, pool = pool[-max(1, tokens // length) :], pool[: -max(1, tokens // length)]
            ready.append(pad(rows, length))
        r.shuffle(ready)
        yield from ready


def packed_batches(documents: Iterator[Encoded], tokens: int, length: int) -> Iterator[Batch]:
    """Endless batches whose rows hold several documents one after the other, so that late positions are learned too."""
    while True:
        rows: list[Encoded] = []
        while len(rows) < tokens // length:
            ids, learned = next(documents)
            while len(ids) <= length:
                more_ids, more_learned = next(documents)
                ids, learned = ids + more_ids, learned + more_learned
            rows.append((ids[: length + 1], learned[: length + 1]))
        yield pad(rows, length + 1)
