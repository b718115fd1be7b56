"""Recipes of T5 and its relatives, whose layers are an encoder's and a decoder's."""

from dataclasses import replace

from . import shape as t
from .recipes import Recipe

N_BUCKETS = 32


def attention(s, name):
    rows = {"q": s.q_dim, "k": s.q_dim, "v": s.q_dim}
    shapes = {f"{name}_{part}": (n, s.n_embd) for part, n in rows.items()}
    return t.weights(**shapes, **{f"{name}_o": (s.n_embd, s.q_dim)})


def layer(s, *, gated, cross=False):
    shapes = t.norms(s, "attn_norm", "ffn_norm") | attention(s, "attn")
    shapes |= t.gated(s) if gated else t.plain(s, bias=False)
    return shapes | t.norms(s, "cross_attn_norm") | attention(s, "cross_attn") if cross else shapes


def stack(s, part, n, *, gated, each_biased, cross=False):
    """A part's layers and its last norm; where not each layer has biases of its own, the first has them."""
    shapes = t.norms(s, f"{part}.output_norm")
    for i in range(n):
        own = t.weights(attn_rel_b=(N_BUCKETS, s.n_heads)) if each_biased or not i else {}
        shapes |= {f"{part}.blk.{i}.{name}": dims for name, dims in (layer(s, gated=gated, cross=cross) | own).items()}
    return shapes


def encoder(gated=True, each_biased=False):
    return lambda s: stack(s, "enc", s.n_layers, gated=gated, each_biased=each_biased)


def keys(s):
    return {"attention.relative_buckets_count": N_BUCKETS, "attention.layer_norm_epsilon": 1e-5}


ENCODER = Recipe(
    "t5encoder",
    lambda s, i: {},
    keys,
    tied=True,
    final_norm="",
    extra=encoder(),
    head_size=True,
    kv_heads="no key",
    gains={"attn_q": 0.3, "cross_attn_q": 0.3},
)


def both(gated=True, each_biased=False, output=False):
    """An encoder and a decoder, which has a layer less than it; output: of its own, not tied."""

    def shapes(s):
        made = stack(s, "enc", s.n_layers, gated=gated, each_biased=each_biased)
        made |= stack(s, "dec", s.n_layers - 1, gated=gated, each_biased=each_biased, cross=True)
        return made | (t.weights(output=(s.n_vocab, s.n_embd)) if output else {})

    return shapes


BOTH = replace(
    ENCODER,
    arch="t5",
    extra=both(gated=False),
    keys=lambda s: keys(s) | {"decoder_block_count": s.n_layers - 1, "decoder_start_token_id": 7},
)

RECIPES = {
    "t5": BOTH,
    "t5-flan": replace(BOTH, extra=both(output=True)),
    "umt5": replace(BOTH, extra=both(each_biased=True, output=True)),
    "t5encoder": ENCODER,
    "t5encoder-relu": replace(ENCODER, extra=encoder(gated=False)),
    "t5encoder-umt5": replace(ENCODER, extra=encoder(each_biased=True)),
}


def vocabulary(n=131):
    """A Unigram vocabulary of letters for as many tokens, as converters write it of T5's: no BOS, an EOS behind."""
    tokens = ["<pad>", "</s>", "<unk>", "▁", *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ:?.,"]
    tokens += [f"▁{a}{b}" for a in "abcdefghij" for b in "abcdefgh"][: n - len(tokens)]
    prefix = "tokenizer.ggml."
    return {
        f"{prefix}model": "t5",
        f"{prefix}tokens": tokens,
        f"{prefix}scores": [0.0] * 3 + [-float(i) for i in range(3, len(tokens))],
        f"{prefix}token_type": [3, 3, 2] + [1] * (len(tokens) - 3),
        f"{prefix}eos_token_id": 1,
        f"{prefix}unknown_token_id": 2,
        f"{prefix}padding_token_id": 0,
        f"{prefix}add_space_prefix": True,
        f"{prefix}add_eos_token": True,
        f"{prefix}add_bos_token": True,
    }
