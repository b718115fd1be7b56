"""An engine without a model: logits are a hash of the tokens that the blocks and slots of a sequence really hold.

A block or slot that is shared by mistake, a stale table, a wrong position or a token left out changes the hash, or is
found out at once: so equal tokens mean right bookkeeping.
"""

import zlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from oxillama.config import EngineConfig, SamplerConfig
from oxillama.core.loading import EngineParts
from oxillama.core.options import read_options
from oxillama.engine import Engine
from oxillama.sampling import SamplerChain
from oxillama.tokenizer import TokenStream
from oxillama.tokenizer.control_texts import ControlTexts

# BOS, EOS, and pieces of text: letters, longer pieces, and a character in two halves.
PIECES = [b"", b"</s>", *(bytes([c]) for c in b"abcdefgh .!"), b"ab", b"bcd", b"the ", b"\xc3", b"\xa9"]
BOS, EOS = 0, 1
N_VOCAB = len(PIECES)
N_EMBD = 8
# What the fake model's file says of sampling: with a penalty, by which each token depends on those before it.
PENALISED = SamplerConfig.original()


def drawn(**fields):
    """The settings of a call that gives these fields alone."""
    return replace(PENALISED, **fields)


class FakeTokenizer:
    """Longest piece first; BOS in front."""

    model = "gpt2"
    n_vocab = N_VOCAB
    bos_id, eos_id = BOS, EOS
    add_bos = True
    eog_ids = frozenset({EOS})
    control_texts = ControlTexts(())

    def encode(self, text, add_special=True, parse_special=False, continuation=False, owner=None):
        ids, raw = [BOS] if add_special else [], text.encode()
        while raw:
            best = max((i for i, p in enumerate(PIECES) if p and raw.startswith(p)), key=lambda i: len(PIECES[i]))
            ids.append(best)
            raw = raw[len(PIECES[best]) :]
        return ids

    def forget_texts(self):
        pass

    def least_tokens(self, text, enough, **options):
        return -(-len(text) // max(map(len, PIECES)))

    def token_bytes(self, token):
        return PIECES[token]

    def is_special(self, token):
        return token in (BOS, EOS)

    def token_to_id(self, text):
        return PIECES.index(text.encode()) if text.encode() in PIECES else None

    def id_to_token(self, token):
        return PIECES[token].decode()

    def decode(self, ids, *, skip_special=False):
        return b"".join(PIECES[i] for i in ids if not (skip_special and self.is_special(i))).decode("utf-8", "replace")

    def stream(self, *, skip_special=False, shown=()):
        return TokenStream(lambda i: PIECES[i])


class FakeRunner:
    """Keeps (position, token) for every place of every block, and computes from what it finds there.

    With recurrent slots it keeps all tokens so far in each of them, and computes from those; with blocks of a window,
    it keeps all tokens so far in each place, and sees the places of the window alone. All that there is must agree. A
    step that is given up leaves rubbish where it was to write.
    """

    num_threads = 1

    def __init__(self, n_blocks, block_size=16, hook=None, n_slots=0, n_windowed=0, window=0):
        self.block_size = block_size
        self.places = [[None] * block_size for _ in range(n_blocks)]
        self.states = [["never written"] for _ in range(n_slots)]
        self.windowed = [[None] * block_size for _ in range(n_windowed)]
        self.window = window
        self.hook = hook
        self.steps = []  # tokens of each span of each forward

    def memory_bytes(self):
        return {}

    def paging_counts(self):
        return {}

    def cache_bytes(self, n_blocks, n_windowed, n_slots):
        return n_blocks * 100 + n_windowed * 10 + n_slots

    def release(self, blocks, windowed, slots):
        for i in blocks:
            self.places[i] = [None] * self.block_size
        for i in windowed:
            self.windowed[i] = [None] * self.block_size
        for i in slots:
            self.states[i] = ["released"]
        return self.cache_bytes(len(blocks), len(windowed), len(slots))

    def check_files(self):
        pass

    def copy_block(self, source, target, windowed=False):
        places = self.windowed if windowed else self.places
        places[target] = list(places[source])

    def histories(self, spans, poll):
        """For each row its token's whole past."""
        for s in spans:
            if self.states:
                self.states[s.slots[1]] = ["rubbish"]
        if self.hook:
            self.hook(self, spans, poll)
        if poll:
            poll()
        self.steps.append([len(s.tokens) for s in spans])
        assert all(len(s.tokens) > 0 for s in spans)
        pasts = [self.from_blocks(spans)] if self.places else []
        pasts += [self.from_windows(spans)] if self.windowed else []
        pasts += [self.from_slots(spans)] if self.states else []
        assert all(past == pasts[0] for past in pasts)
        return zip(spans, pasts[0], strict=True)

    def from_blocks(self, spans):
        tables = [block for s in spans for block in s.block_table]
        for s in spans:
            assert len(set(s.block_table)) == len(s.block_table)
            for block in s.block_table[s.start // self.block_size :]:
                assert tables.count(block) == 1, "a block is written that another reads"
        for s in spans:
            for offset, token in enumerate(s.tokens):
                position = s.start + offset
                block = s.block_table[position // self.block_size]
                self.places[block][position % self.block_size] = (position, token)
        pasts = []
        for s in spans:
            past = [self.places[s.block_table[p // self.block_size]][p % self.block_size] for p in range(s.start)]
            past += [(s.start + i, t) for i, t in enumerate(s.tokens)]
            assert [p for p, _ in past] == list(range(len(past))), "a hole in the cache"
            pasts.append([t for _, t in past])
        return pasts

    def from_windows(self, spans):
        used = [{block for block in s.windowed if block >= 0} for s in spans]
        for i, s in enumerate(spans):
            written = set(s.windowed[s.start // self.block_size :])
            assert not any(written & other for j, other in enumerate(used) if j != i), "a block with two owners"
        pasts = []
        for s in spans:
            past = []
            for position in range(max(0, s.start + 1 - self.window), s.start):
                block = s.windowed[position // self.block_size]
                assert block >= 0, "a block was given back too early"
                at, past = self.windowed[block][position % self.block_size]
                assert at == position, "a block of another position"
            for position, token in enumerate(s.tokens, s.start):
                past = [*past, token]
                self.windowed[s.windowed[position // self.block_size]][position % self.block_size] = position, past
            pasts.append(past)
        return pasts

    def from_slots(self, spans):
        written = [s.slots[1] for s in spans]
        assert len(set(written)) == len(written), "a slot with two owners"
        assert not {s.slots[0] for s in spans} & set(written), "a slot is written that another reads"
        pasts = []
        for s in spans:
            read, write = s.slots
            assert (read < 0) == (s.start == 0)
            past = [] if read < 0 else self.states[read]
            assert len(past) == s.start, "the state of another position"
            self.states[write] = [*past, *s.tokens]
            pasts.append(self.states[write])
        return pasts

    def forward(self, spans, poll=None):
        rows = []
        for s, past in list(self.histories(spans, poll)):
            first = {"all": s.start, "last": len(past) - 1, "likeliest": len(past) - 1, "none": len(past)}[s.want]
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


def make_engine(
    *, context_size=64, n_blocks=None, n_slots=0, windows=(0, 0), hook=None, causal=True, pooling="mean", **fields
):
    """An engine on the fake model; `hook(runner, spans, poll)` runs at the beginning of each forward.

    n_slots: with recurrent layers; n_blocks 0 then, without others. windows: blocks of layers with a window, and how
    far they see.
    """
    config = EngineConfig(**fields)
    size = config.kv_block_size
    n_blocks = n_blocks if n_blocks is not None else 4 * -(-context_size // size)
    runner = FakeRunner(n_blocks, size, hook, n_slots, *windows)
    spec = SimpleNamespace(
        n_embd=N_EMBD,
        arch="fake",
        name="hash",
        n_vocab=N_VOCAB,
        n_layers=0,
        context_length=context_size,
        causal=causal,
        denoises=False,
        decoder_start=None,
    )
    parts = EngineParts(
        runner, FakeTokenizer(), spec, context_size, n_blocks, n_slots, pooling, {}, *windows, sampling=PENALISED
    )
    engine = Engine(config, parts=parts)
    core_of(engine).scheduler.debug = True
    return engine


def core_of(engine):
    """The engine's core: requests, scheduler and pools, which nothing public shows."""
    return engine._core


def runner_of(engine):
    return core_of(engine).runner


def session_of(engine):
    """The session of an engine's own calls, or that of a conversation."""
    return engine._session


def sequence_of(session):
    """A session's sequence: how many tokens are computed, and where their blocks are."""
    return session._sequence


def factory_of(engine):
    """What makes requests of prompts and options."""
    return engine._factory


def snapshots_of(engine):
    """The engine's snapshot writer."""
    return engine._snapshots


def requests_of(stream):
    """The requests of a stream that is read."""
    return stream._requests()


def outbox_of(stream):
    """What the requests of a stream put their chunks into."""
    return stream._outbox


def assert_idle(engine):
    """Nothing runs, and every block and slot is free but those of the session and of the prefix cache."""
    scheduler, pool = core_of(engine).scheduler, core_of(engine).pool
    assert scheduler.running == []
    assert list(scheduler.waiting) == []
    sequence = engine._session._sequence
    for blocks, table in zip((pool.blocks, pool.windowed), sequence.tables, strict=True):
        assert set(blocks._kept) | {block for block in table if block >= 0} == {
            i for i, n in enumerate(blocks.users) if n
        }
    assert pool.slots.n_free == pool.n_slots - len(slots_of(sequence) | set(pool.slots._kept))
    scheduler.check_invariants([])


def slots_of(sequence):
    """All slots that an idle sequence keeps."""
    if sequence.slots is None:
        return set()
    assert sequence.slots.spare == []
    return {sequence.slots.current, *(slot for _, slot in sequence.slots.checkpoints)} - {-1}


def options(**given):
    return read_options("chat", given, SamplerChain.from_config(PENALISED))
