"""Everything that allocates: parts of the kernels, each by itself, and what an engine does."""

import functools
import tempfile
from pathlib import Path

import numpy as np

import oxillama as ox
from oxillama.core.loading import shipped_model
from oxillama.grammar import Grammar
from oxillama.grammar.automata.stacks import Stacks
from oxillama.grammar.automata.trie import TokenTrie
from oxillama.kernels.repeats import repeat_lengths
from oxillama.kernels.sampling import Candidates
from oxillama.tokenizer._merging import Merger, MergeTable
from oxillama.tokenizer._texts import TokenTexts
from tests.lora.files import linear_shapes, random_factors, write_adapter
from tests.memory.trial import Operation
from tests.models.references import rewritten
from tests.models.tiny import tiny
from tests.models.tiny.t5 import vocabulary

# Left recursion, counted repeats, characters of several bytes, rules that may be empty, ambiguity.
GRAMMARS = {
    "sums": 'root ::= sum\nsum ::= sum "+" term | term\nterm ::= [0-9]{1,3} | "(" sum ")" | term "*" term',
    "texts": 'root ::= (word " "?)* end?\nword ::= [a-zäöü€-₿]+ | "\\"" [^"\\\\]* "\\""\nend ::= "." | "!"{2,5}',
    "deep": 'root ::= a\na ::= b a | b\nb ::= "x" c? | d{0,40}\nc ::= [a-c] a?\nd ::= "y" | "z" [0-9a-f]{2000}',
}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "tags": {"type": "array", "items": {"type": "integer"}}},
    "required": ["name"],
}
TEXTS = {"sums": b"12+(3*4+5)*6", "texts": 'äb €"x y" end!!'.encode(), "deep": b"xaxyyz"}
VOCABULARY = [bytes([i]) for i in range(256)] + [b"12", b"+(", b"x y", b"ab", b"yy", b'{"', b'"name"', b'":', None]
WORDS = (len(VOCABULARY) + 31) // 32
PROMPT = "Once upon a time"


# ---- parts of the kernels


def compiled(text):
    return Grammar.parse(text).accepts(b"no")


def from_schema(schema):
    return ox.JsonSchemaCompiler.compile(schema).accepts('{"name": "a", "tags": [1, 2]}')


@functools.cache
def trie():
    return TokenTrie(VOCABULARY, [len(VOCABULARY) - 1])


def built_trie(_):
    made = TokenTrie(VOCABULARY, [len(VOCABULARY) - 1])
    return [made.text(i) for i in range(len(VOCABULARY))]


def strings(texts):
    """A GGUF array of strings: bytes, and where each begins."""
    payload = b"".join(len(text).to_bytes(8, "little") + text for text in texts)
    return np.frombuffer(payload, np.uint8), np.cumsum([0, *(8 + len(text) for text in texts)], dtype=np.int64)


def merged(_):
    """Without the library that cuts texts, whose language ends what has no memory."""
    texts, usable = TokenTexts(*strings([b"a", b"b", b"ab", b"abab"])), np.ones(4, np.uint8)
    merges = MergeTable(texts, usable, *strings([b"a b", b"ab ab"]))
    merges.close([])
    return Merger(texts, usable, merges=merges).ids(["abababa", "ab" * 5000]), texts[2], texts.n_chars().tolist()


def walked(name):
    """Masks at every place of a text, of a grammar and of what it forgets and renumbers in between."""

    def use(grammar):
        state, out = grammar.state(trie()), np.zeros(WORDS, np.uint32)
        found = []
        for i in range(len(TEXTS[name])):
            found.append((state.mask(out), out.tobytes(), state.is_complete, state.forced_bytes(4)))
            state.advance(TEXTS[name][i : i + 1])
        return found, grammar.accepts(TEXTS[name])

    return use


def compacted(stacks):
    text = TEXTS["sums"]
    nodes = np.array([stacks.step_bytes(stacks.root, text[:i]) for i in range(len(text))], np.int32)
    stacks.compact([nodes])
    rest = [stacks.step_bytes(node, text[i:]) for i, node in enumerate(nodes.tolist())]
    return [stacks.is_end(node) for node in rest], len(set(rest)), stacks.step_bytes(stacks.root, b"+")


def triggered(grammar):
    state, out = grammar.state(trie(), triggers=["12", "(1"]), np.zeros(WORDS, np.uint32)
    found = []
    for token in b"ab(1+3":
        found.append((state.mask(out), out.tobytes(), state.active))
        state.advance(token)
    return found


LOGITS = np.random.default_rng(1).standard_normal((3, 5000)).astype(np.float32)


def cut(candidates):
    found = []
    for n, row in enumerate(LOGITS):
        candidates.load(row[: 1000 * (n + 1)])
        candidates.penalize({3: 2, 5: 1}, 1.3, 0.1, 0.2)
        for stage, value in (("top_k", 200), ("typical_p", 0.95), ("top_p", 0.9), ("min_weight", 0.01)):
            getattr(candidates, stage)(value)
        found.append((candidates.items(), candidates.draw(0.3)))
    return found


def repeats(_):
    return repeat_lengths(np.array([1, 2, 3, 4, 1, 2, 3], np.int32), 100, 1)


def kernels():
    def grammar_of(name):
        return lambda: Grammar.parse(GRAMMARS[name])

    return {
        **{f"compile {name}": Operation(lambda text=text: text, compiled) for name, text in GRAMMARS.items()},
        **{f"follow {name}": Operation(grammar_of(name), walked(name)) for name in GRAMMARS},
        "compile a schema": Operation(lambda: SCHEMA, from_schema),
        "vocabulary": Operation(lambda: None, built_trie),
        "merges": Operation(lambda: None, merged),
        "compact": Operation(lambda: Stacks(Grammar.parse(GRAMMARS["sums"]).automaton), compacted),
        "triggers": Operation(grammar_of("sums"), triggered),
        "candidates": Operation(Candidates, cut),
        "repeats": Operation(lambda: None, repeats),
    }


# ---- an engine

ENDLESS = {"max_tokens": 6, "ignore_eos": True, "seed": 3}


@functools.cache
def adapter():
    folder = Path(tempfile.mkdtemp(prefix="oxillama-memory-"))
    shapes = linear_shapes(shipped_model())
    with ox.gguf.open(shipped_model()) as file:
        return write_adapter(folder / "a.gguf", file.metadata.arch, random_factors(shapes, 2), alpha=0.4)


def load(**fields):
    return ox.load(**{"num_threads": 2, "context_size": 256, **fields})


def loaded(_):
    with load() as engine:
        return engine.tokenize(PROMPT)


def ids(completion):
    return completion.token_ids


def restored(engine):
    """A session and a text, each continued from its snapshot."""
    engine.reset()
    engine.prefill(engine.tokenize(PROMPT))
    data = engine.snapshot_bytes()
    engine.reset()
    with ox.Engine.restore_bytes(data) as other:
        return other.forward_one(7).tobytes()


def with_adapter(engine):
    engine.load_lora("a", adapter())
    try:
        return ids(engine.generate(PROMPT, lora=[("a", 0.7)], **ENDLESS))
    finally:
        engine.unload_lora("a")


@functools.cache
def encoder_decoder():
    folder = Path(tempfile.mkdtemp(prefix="oxillama-memory-"))
    return rewritten(tiny("t5-flan", folder), folder, vocabulary())


def read_by_an_encoder(engine):
    prompt = engine.tokenize("abc hij")
    rows = engine.forward_logits(prompt, decoder_tokens=[7, 30, 31])
    return rows.tobytes(), engine.embed(prompt).tobytes(), ids(engine.generate(prompt, **ENDLESS))


def session(engine):
    engine.reset()
    logits = engine.prefill(engine.tokenize(PROMPT)).tobytes()
    engine.forward_one(5)
    engine.truncate(engine.position - 2)
    return logits, engine.forward_one(9).tobytes()


def engines():
    def of(use, **fields):
        return Operation(lambda: load(**fields), use, lambda engine: engine.close())

    sampling = {"top_k": 50, "dry_multiplier": 0.8, "mirostat": 0, "typical_p": 0.9}
    return {
        "load": Operation(lambda: None, loaded),
        "greedy": of(lambda e: ids(e.generate(PROMPT, temperature=0.0, **ENDLESS))),
        "sampled": of(lambda e: [ids(c) for c in e.generate([PROMPT, "A"], **sampling, **ENDLESS)]),
        "mirostat": of(lambda e: ids(e.generate(PROMPT, mirostat=2, **ENDLESS))),
        "grammar": of(lambda e: ids(e.generate(PROMPT, grammar=GRAMMARS["texts"], **ENDLESS))),
        "schema": of(lambda e: ids(e.generate(PROMPT, json_schema=SCHEMA, **ENDLESS))),
        "stream": of(lambda e: [c.text for c in e.stream(PROMPT, **ENDLESS)]),
        "chat": of(lambda e: ids(e.chat([{"role": "user", "content": "hi"}], **ENDLESS))),
        "logprobs": of(lambda e: ids(e.generate(PROMPT, logprobs=3, prompt_logprobs=2, **ENDLESS))),
        "session": of(session),
        "logits": of(lambda e: e.forward_logits(e.tokenize(PROMPT)).tobytes()),
        "embed": of(lambda e: e.embed(["a", PROMPT]).tobytes()),
        "snapshot": of(restored),
        "adapter": of(with_adapter),
        "offload": of(lambda e: ids(e.generate(PROMPT, **ENDLESS)), offload=1 << 21),
        "encoder": Operation(lambda: load(model_path=encoder_decoder()), read_by_an_encoder, lambda e: e.close()),
        "raw weights": of(lambda e: ids(e.generate(PROMPT, **ENDLESS)), repack=False),
    }
