"""Attention over keys that an index chooses: against float64, and against itself however it is cut up."""

import numpy as np
import pytest

from oxillama.errors import ConfigError
from oxillama.kernels.attention import Attention, KvSlab, attend, store
from oxillama.kernels.batch import Batch, Span
from oxillama.kernels.chosen import Choice, attend_chosen, choose
from oxillama.kernels.rows import Workspace
from tests.kernels.paged_attention import BOUND, STORED, TYPES, as_scored, in_chunks, normal

HEADS = 4


class Chosen:
    """One sequence: an index, and attention over ``kv_heads`` that it chooses for.

    ``weighed``: ``n_index`` heads choose together for the one head of keys; otherwise each has its own query.
    ``latent``: values are the first part of the keys.
    """

    def __init__(
        self, n, k, unit=1, local=0, *, kv_heads=1, weighed=True, block=16, kv_type="f32", n_index=12, dim=33,
        k_dim=40, v_dim=24, latent=False,
    ):  # fmt: skip
        rng = np.random.default_rng(n + k + unit)
        self.n, self.kv_type, self.units = n, kv_type, {"k": k, "unit": unit, "local": local, "n_heads": kv_heads}
        n_index = n_index if weighed else kv_heads
        self.index_q, self.index_k = normal(rng, (n, n_index * dim)), normal(rng, (n, dim))
        self.weights = normal(rng, (n, n_index)) if weighed else None
        self.q, self.k = normal(rng, (n, HEADS * k_dim)), normal(rng, (n, kv_heads * k_dim))
        self.v = self.k[:, :v_dim].copy() if latent else normal(rng, (n, kv_heads * v_dim))
        n_blocks = -(-n // block) + 3
        self.slab = KvSlab(kv_type, n_blocks, kv_heads, block, k_dim, v_dim)
        self.index = KvSlab(kv_type, n_blocks, 1, block, dim, 0)
        for bytes_ in (self.slab.k, self.slab.v, self.index.k):
            bytes_[:] = 0xFF  # NaN as a float, a half, and the scale of 8-bit codes
        self.table = rng.permutation(n_blocks)[: -(-n // block)].astype(np.int32)
        self.rule = Attention(k_dim**-0.5)

    def run(self, chunks, threads=1):
        """Attention of every position, taken in chunks: float32 [n, HEADS * v_dim]."""
        out, start, workspace = [], 0, Workspace(threads)
        for size in chunks:
            end = min(start + size, self.n)
            batch = Batch([Span(range(end - start), start, self.table)], workspace)
            q, k, v, iq, ik = (
                workspace.from_array(x[start:end]) for x in (self.q, self.k, self.v, self.index_q, self.index_k)
            )
            w = None if self.weights is None else workspace.from_array(self.weights[start:end])
            store(k, v, self.slab, batch)
            store(ik, None, self.index, batch)
            choice = Choice(batch, **self.units)
            choose(iq, w, self.index, batch, choice, 0.25)
            out.append(attend_chosen(q, self.slab, batch, self.rule, choice).numpy().copy())
            workspace.reset()
            start = end
        return np.concatenate(out)

    def expected(self):
        """In float64, of keys and values as they are stored, and of queries in the codes that they are scored with."""
        n, slab = self.n, self.slab
        index_q, index_k = as_scored(self.index_q.reshape(n, -1, self.index.k_dim), self.index_k, self.kv_type)
        scores = np.einsum("ihd,jd->hij", index_q, index_k)
        if self.weights is not None:
            scores = np.einsum("ih,hij->ij", self.weights.astype(np.float64), np.maximum(0.25 * scores, 0))[None]
        q, k = as_scored(self.q.reshape(n, HEADS, -1), self.k.reshape(n, -1, slab.k_dim), self.kv_type)
        v = STORED[self.kv_type](self.v.reshape(n, -1, slab.v_dim))
        group, out = HEADS // k.shape[1], np.zeros((n, HEADS, slab.v_dim))
        for i in range(n):
            for h in range(HEADS):
                seen = self.seen(scores[h // group, i, : i + 1])
                s = k[seen, h // group] @ q[i, h] * self.rule.scale
                p = np.exp(s - s.max())
                out[i, h] = p / p.sum() @ v[seen, h // group]
        return out.reshape(n, -1)

    def seen(self, scores):
        """The keys of the best units, of equal ones the first."""
        unit, k, local = (self.units[name] for name in ("unit", "k", "local"))
        best = np.array([scores[i : i + unit].max() for i in range(0, len(scores), unit)])
        best[len(best) - local :] = np.inf
        units = np.argsort(-best, kind="stable")[:k]
        return np.flatnonzero(np.isin(np.arange(len(scores)) // unit, units))


CASES = {
    "positions": {"n": 150, "k": 37},
    "positions in large blocks": {"n": 150, "k": 1, "block": 64},
    "one more than a tile": {"n": 150, "k": 65},
    "several spans": {"n": 700, "k": 600, "block": 128},
    "latent": {"n": 150, "k": 70, "n_index": 3, "dim": 128, "k_dim": 576, "v_dim": 512, "latent": True},
    "blocks of 8": {"n": 150, "k": 3, "unit": 8, "local": 1, "kv_heads": 2, "weighed": False},
    "blocks of 16": {"n": 230, "k": 4, "unit": 16, "local": 2, "kv_heads": 2, "weighed": False, "block": 32},
    "blocks of 128": {"n": 900, "k": 5, "unit": 128, "local": 1, "kv_heads": 4, "weighed": False, "block": 64},
    "wide heads": {
        "n": 330, "k": 2, "unit": 128, "local": 1, "kv_heads": 2, "weighed": False, "block": 32, "dim": 128,
        "k_dim": 128, "v_dim": 128,
    },
}  # fmt: skip


@pytest.mark.sweep(12)
@pytest.mark.parametrize("kv_type", TYPES)
@pytest.mark.parametrize("case", CASES)
def test_against_float64(case, kv_type):
    """Positions, as DeepSeek-V3.2 chooses them, of a latent too; blocks for each head, as MiniMax-M3 does."""
    s = Chosen(**CASES[case], kv_type=kv_type)
    assert np.abs(s.run([s.n]) - s.expected()).max() < BOUND[kv_type]


@pytest.mark.sweep(12)
@pytest.mark.parametrize("kv_type", TYPES)
@pytest.mark.parametrize("case", CASES)
def test_chunks_and_threads_give_equal_bits(case, kv_type):
    s = Chosen(**CASES[case], kv_type=kv_type)
    whole = s.run([s.n])
    for size, threads in ((1, 2), (7, 1), (16, 3), (100, 2)):
        assert (s.run(in_chunks(s.n, size), threads) == whole).all(), (size, threads)


def test_everything_is_seen_where_all_may_be_chosen():
    s = Chosen(n=90, k=90)
    workspace = Workspace(1)
    batch = Batch([Span(range(90), 0, s.table)], workspace)
    got = s.run([90])
    assert (attend(workspace.from_array(s.q), s.slab, batch, s.rule).numpy() == got).all()


def test_of_equal_scores_the_first_are_taken():
    s = Chosen(n=100, k=20)
    s.index_k[:] = s.index_k[0]
    assert s.seen(np.zeros(60)).tolist() == list(range(20))
    assert np.abs(s.run([100]) - s.expected()).max() < BOUND["f32"]


def test_scores_of_both_zeros_are_equal():
    """Where no query gives a key anything, weights below zero make a zero below zero of it."""
    s = Chosen(n=60, k=20, n_index=1, dim=1)
    s.index_q[:], s.weights[:] = 1, np.where(np.arange(60) % 2, 1, -1)[:, None]
    s.index_k[:] = -1
    assert np.abs(s.run([60]) - s.expected()).max() < BOUND["f32"]


def test_a_key_that_is_no_number_is_chosen():
    s = Chosen(n=60, k=5)
    s.index_k[3] = s.v[3] = np.nan
    got = s.run([60])
    assert not np.isnan(got[:3]).any()
    assert np.isnan(got[3:]).all()


def test_rows_of_the_output_keep_their_choice():
    """Of a batch of two sequences, the last row of one and all of the other."""
    s, t = Chosen(n=80, k=9), Chosen(n=80, k=9)
    whole, workspace = s.run([80]), Workspace(2)
    t.table = s.table + s.slab.n_blocks
    slab, index = (KvSlab("f32", 2 * x.n_blocks, 1, 16, x.k_dim, x.v_dim) for x in (s.slab, s.index))
    spans = [Span(range(80), 0, s.table, "last"), Span(range(80), 0, t.table, "all")]
    batch = Batch(spans, workspace)
    q, k, v, iq, ik, w = (
        workspace.from_array(np.concatenate([x, x])) for x in (s.q, s.k, s.v, s.index_q, s.index_k, s.weights)
    )
    store(k, v, slab, batch)
    store(ik, None, index, batch)
    choice = Choice(batch, 9)
    choose(iq, w, index, batch, choice, 0.25)
    assert (attend_chosen(q, slab, batch, s.rule, choice).numpy() == np.concatenate([whole, whole])).all()
    choice.take_outputs(batch)
    rows = workspace.from_array(np.concatenate([s.q, s.q])[batch.output_rows])
    got = attend_chosen(rows, slab, batch.outputs, s.rule, choice).numpy()
    assert (got == np.concatenate([whole[-1:], whole])).all()


class TestRefusals:
    def parts(self, **choice):
        s, workspace = Chosen(n=20, k=5), Workspace(1)
        batch = Batch([Span(range(20), 0, s.table)], workspace)
        rows = [workspace.from_array(x) for x in (s.q, s.index_q, s.weights)]
        return s, batch, rows, Choice(batch, **({"k": 5} | choice))

    @pytest.mark.parametrize("wrong", [{"k": 0}, {"unit": 0}, {"n_heads": 0}, {"local": 6}, {"k": 1 << 24}])
    def test_counts_out_of_range(self, wrong):
        with pytest.raises(ConfigError, match="must be positive"):
            self.parts(**wrong)

    def test_weights_of_other_heads(self):
        s, batch, (_, iq, w), choice = self.parts()
        with pytest.raises(ConfigError, match="weights of 20 x 12 for 20 queries of 11 heads"):
            choose(iq.workspace.new(20, 11 * 33), w, s.index, batch, choice)

    def test_an_index_of_several_heads(self):
        s, batch, (_q, iq, w), choice = self.parts()
        several = KvSlab("f32", s.index.n_blocks, 3, 16, 11, 0)
        with pytest.raises(ConfigError, match="an index of 3 heads of keys; one is needed"):
            choose(iq, w, several, batch, choice)

    def test_a_choice_made_for_fewer_rows(self):
        s, batch, (q, iq, w), _choice = self.parts()
        few = Choice(Batch([Span(range(9), 0, s.table)], batch.workspace), 5)
        with pytest.raises(ConfigError, match="a choice of 9 rows for 20"):
            choose(iq, w, s.index, batch, few)
        with pytest.raises(ConfigError, match="of another batch"):
            attend_chosen(q, s.slab, batch, s.rule, few)

    def test_a_choice_for_other_heads(self):
        s, batch, (_q, iq, w), choice = self.parts(n_heads=2)
        with pytest.raises(ConfigError, match="12 heads of queries choose for 2"):
            choose(iq, None, s.index, batch, choice)
        with pytest.raises(ConfigError, match="which choose for 2 heads"):
            choose(iq, w, s.index, batch, choice)

    def test_a_choice_of_another_batch(self):
        s, batch, (q, _iq, _w), choice = self.parts()
        other = Batch([Span(range(20), 0, s.table)], batch.workspace)
        with pytest.raises(ConfigError, match="of another batch"):
            attend_chosen(q, s.slab, other, s.rule, choice)
        with pytest.raises(ConfigError, match="another batch"):
            choice.take_outputs(other)

    def test_rows_that_have_not_chosen(self):
        s, batch, (q, _iq, _w), choice = self.parts()
        assert choice.chooses
        with pytest.raises(ConfigError, match="15 rows have not chosen their keys"):
            attend_chosen(q, s.slab, batch, s.rule, choice)
        assert not Choice(batch, 20).chooses

    @pytest.mark.parametrize("option", [{"window": 5}, {"slopes": [1.0] * HEADS}, {"causal": False}])
    def test_rules_that_know_of_distances(self, option):
        s, batch, (q, iq, w), choice = self.parts()
        choose(iq, w, s.index, batch, choice)
        with pytest.raises(ConfigError, match="chosen keys is causal"):
            attend_chosen(q, s.slab, batch, Attention(1.0, **option), choice)
