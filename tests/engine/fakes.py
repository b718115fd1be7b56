"""An engine without a model: logits are a hash of the tokens that the KV blocks of a sequence really hold.

A block that is shared by mistake, a stale table, a wrong position or a token left out changes the hash, or is found out
at once: so equal tokens mean right bookkeeping.
"""

import zlib
from types import SimpleNamespace

import numpy as np

from oxillama.config import EngineConfig
from oxillama.engine import Engine
from oxillama.engine.loading import EngineParts
from oxillama.tokenizer import TokenStream

# BOS, EOS, and pieces of text: letters, longer pieces, and a character in two halves.
PIECES = [b"", b"</s>", *(bytes([c]) for c in b"abcdefgh .!"), b"ab", b"bcd", b"the ", b"\xc3", b"\xa9"]
BOS, EOS = 0, 1
N_VOCAB = len(PIECES)
N_EMBD = 8


class FakeTokenizer:
    """Longest piece first; BOS in front."""

    n_vocab = N_VOCAB
    bos_id, eos_id = BOS, EOS
    add_bos = True
    eog_ids = frozenset({EOS})

    def encode(self, text, add_special=True, parse_special=False):
        ids, raw = [BOS] if add_special else [], text.encode()
        while raw:
            best = max((i for i, p in enumerate(PIECES) if p and raw.startswith(p)), key=lambda i: len(PIECES[i]))
            ids.append(best)
            raw = raw[len(PIECES[best]) :]
        return ids

    def decode(self, ids):
        return b"".join(PIECES[i] for i in ids).decode("utf-8", "replace")

    def stream(self, *, skip_special=False):
        return TokenStream(lambda i: PIECES[i])


class FakeRunner:
    """Keeps (position, token) for every slot of every block, and computes from what it finds there."""

    num_threads = 1

    def __init__(self, n_blocks, block_size=16, hook=None):
        self.block_size = block_size
        self.slots = [[None] * block_size for _ in range(n_blocks)]
        self.hook = hook
        self.steps = []  # tokens of each span of each forward

    def memory_bytes(self):
        return {}

    def histories(self, spans, poll):
        """For each row its token's whole past."""
        if self.hook:
            self.hook(self, spans, poll)
        if poll:
            poll()
        self.steps.append([len(s.tokens) for s in spans])
        owners = {}
        for i, s in enumerate(spans):
            assert len(s.tokens) > 0
            for block in s.block_table:
                assert owners.setdefault(block, i) == i, "a block with two owners"
            for offset, token in enumerate(s.tokens):
                position = s.start + offset
                block = s.block_table[position // self.block_size]
                self.slots[block][position % self.block_size] = (position, token)
        for s in spans:
            past = [self.slots[s.block_table[p // self.block_size]][p % self.block_size] for p in range(s.start)]
            past += [(s.start + i, t) for i, t in enumerate(s.tokens)]
            assert [p for p, _ in past] == list(range(len(past))), "a hole in the cache"
            yield s, [t for _, t in past]

    def forward(self, spans, poll=None):
        rows = []
        for s, past in list(self.histories(spans, poll)):
            first = {"all": s.start, "last": len(past) - 1, "none": len(past)}[s.want]
            rows += [logits_of(past[: i + 1]) for i in range(first, len(past))]
        return np.array(rows, np.float32).reshape(len(rows), N_VOCAB)

    def hidden(self, spans, poll=None):
        rows = []
        for s, past in list(self.histories(spans, poll)):
            rows += [hidden_of(past[: i + 1]) for i in range(s.start, len(past))]
        return np.array(rows, np.float32).reshape(len(rows), N_EMBD)


def noise(tokens, salt, n):
    seed = zlib.crc32(np.array([salt, *tokens], np.int32).tobytes())
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def logits_of(tokens):
    """The fake model: a row of logits for the token after these."""
    row = noise(tokens, 1, N_VOCAB) * 2
    row[BOS] = -20
    row[EOS] -= 2
    return row


def hidden_of(tokens):
    return noise(tokens, 2, N_EMBD)


def make_engine(*, context_size=64, n_blocks=None, hook=None, **fields):
    """An engine on the fake model; `hook(runner, spans, poll)` runs at the beginning of each forward."""
    config = EngineConfig(**fields)
    size = config.kv_block_size
    n_blocks = n_blocks if n_blocks is not None else 4 * -(-context_size // size)
    runner = FakeRunner(n_blocks, size, hook)
    spec = SimpleNamespace(
        arch="fake", name="hash", n_vocab=N_VOCAB, n_layers=0, context_length=context_size, causal=True
    )
    return Engine(config, parts=EngineParts(runner, FakeTokenizer(), spec, context_size, n_blocks))


def runner_of(engine):
    return engine._core.runner


def assert_idle(engine):
    """Nothing runs, and every block is free but those of the session."""
    core = engine._core
    assert core.scheduler.running == []
    assert all(s.finished for s in core.scheduler.waiting)
    held = len(engine._session._sequence.block_table)
    assert core.pool.blocks.n_free == core.pool.n_blocks - held
