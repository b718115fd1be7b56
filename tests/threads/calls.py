"""What threads call at once: every public method of an engine, and of what engines share, each with its result."""

import asyncio
import functools
import itertools
from contextlib import closing

import numpy as np

import oxillama as ox
import oxillama.data as oxd
from oxillama.core.options import read_options
from oxillama.grammar.automaton import Vocabulary
from tests.chat.templates import OPENED

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ m.tool_calls }}{% endfor %}"
PROMPTS = ["Once upon a time", "Once upon a hill", "The fox said:", "A"]
GRAMMAR = 'root ::= sentence+\nsentence ::= word (" " word){0,6} "." " "?\nword ::= [a-zA-Z]{1,9} | "\\"" [a-z ]* "\\""'
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}, "required": ["n"]}
DRAWN = {"max_tokens": 10, "ignore_eos": True}


def ids(found):
    return [c.token_ids for c in found] if isinstance(found, list) else found.token_ids


def talk(i):
    """Messages of every role that a prompt has to be changed for, and the beginning of an answer."""
    call = {"id": "call_1", "function": {"name": "look", "arguments": f'{{"at": {i}}}'}}
    return [
        {"role": "developer", "content": [{"type": "text", "text": f"{i} <|end|>"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning": "hm"},
        {"role": "assistant", "content": f"It is {i}"},
    ]


def session(engine, i):
    with engine.session() as own:
        own.prefill(engine.tokenize(PROMPTS[i % 4]))
        twin = own.fork()
        twin.forward_one(5)
        own.truncate(own.position - 1)
        found = own.forward_one(7 + i).tobytes(), twin.forward_one(6).tobytes(), own.position, own.tokens
        twin.close()
    return found


def sampled(engine, i):
    """A loop of one's own, and of a fork that goes back."""
    with engine.session() as own:
        own.prefill(engine.tokenize(PROMPTS[i % 4]))
        for _ in range(5):
            own.forward_one(own.sample(seed=i, grammar=GRAMMAR))
        with own.fork() as twin:
            last = twin.tokens[-3]
            twin.truncate(twin.position - 2)
            twin.forward_decode(last, twin.position - 1)
            return own.tokens, own.sample(), [twin.sample() for _ in range(2)]


def answered(engine, i):
    """An answer in parts, whose reasoning is ended."""
    asked = {"chat_template": OPENED, "reasoning_budget": i % 5, "seed": i}
    found = engine.chat([{"role": "user", "content": f"hi {i}"}], **asked, **DRAWN)
    return found.token_ids, found.reasoning, found.text, found.raw


def half_a_stream(engine, i):
    with closing(engine.stream(PROMPTS[i % 4], seed=i, **DRAWN)) as stream:
        return [c.token_ids for c in itertools.islice(stream, 3)]


def saved_in_the_middle(engine, i):
    """A text that is saved while it is generated, and goes on from there."""
    with closing(engine.stream(PROMPTS[i % 4], seed=i, **DRAWN)) as stream:
        first = [t for c in itertools.islice(stream, 4) for t in c.token_ids]
        data = stream.snapshot_bytes()
    return first, [t for c in engine.resume(data) for t in c.token_ids]


def search_saved_in_the_middle(engine, i):
    """A beam search that is saved after some rounds; both give what it finds."""
    with engine.beam_rounds(PROMPTS[i % 4], beam_width=3, max_new_tokens=6) as search:
        for _ in range(i % 4):
            next(search, None)
        found = engine.resume(search.snapshot_bytes()).results()
        return [(b.token_ids, b.score) for b in found], found == search.results()


def pushed_and_popped(engine, path, i):
    """Of an engine of its own on the same weights: requests have what was pushed when they were made."""
    with engine.session() as own:
        own.prefill([1, 5, 9])
        saved = own.snapshot_bytes()
    found = []
    with ox.Engine.restore_bytes(saved, engine) as beside:
        for scale in (0.5, -0.25):
            beside.push_lora(path, scale)
            found.append(ids(beside.generate(PROMPTS[i % 4], seed=i, **DRAWN)))
        beside.pop_lora()
        found.append(ids(beside.generate(PROMPTS[i % 4], seed=i, **DRAWN)))
        beside.clear_loras()
        found.append((ids(beside.generate(PROMPTS[i % 4], seed=i, **DRAWN)), beside.pushed_loras))
    return found


def pushed_by_many(engine, i):
    """Of an engine on which all threads push, and whose requests say what they want."""
    engine.push_lora("a", 0.1 * i)
    found = ids(engine.generate(PROMPTS[i % 4], seed=i, lora=[("b", 0.5)] if i % 2 else [], **DRAWN))
    engine.pop_lora()
    return found


def ranked(ranker, i):
    documents = ["a b" + " c" * j + " d" * i for j in range(5)]
    return [(d.index, d.score) for d in ranker.rerank("a b c", documents)]


def speculative(spec, i):
    """A session, saved and gone on with, beside texts of the same draft."""
    text = ids(spec.generate(PROMPTS[i % 4], seed=i, **DRAWN))
    with closing(spec.stream(PROMPTS[i % 4], seed=i, **DRAWN)) as stream:
        first = [t for c in itertools.islice(stream, 3) for t in c.token_ids]
        data = stream.snapshot_bytes()
    return text, first + [t for c in spec.resume(data) for t in c.token_ids] == text


def coroutines(engine, i):
    async def all_of_them():
        many = ox.AsyncEngine(engine)
        return await asyncio.gather(*(many.generate(p, seed=i, **DRAWN) for p in PROMPTS[:2]))

    return ids(asyncio.run(all_of_them()))


def with_adapter(engine, i):
    lora = [("a", 0.5)] if i % 2 else ["b"]
    return ids(engine.generate(PROMPTS[i % 4], seed=i, lora=lora, **DRAWN))


def own_adapter(path, engine, i):
    """Loaded and unloaded under a name of its own."""
    name = f"own-{i}-{next(NUMBERS)}"
    engine.load_lora(name, path)
    try:
        return ids(engine.generate(PROMPTS[i % 4], seed=i, lora=[name], **DRAWN))
    finally:
        engine.unload_lora(name)


NUMBERS = itertools.count()


def conversation(engine, i):
    """Two turns, the second of which goes on from what the first left."""
    options = read_options("stream", {"seed": i, **DRAWN}, engine.context.factory.default_chain)
    talk = engine.conversation()
    said = [t for c in talk.stream(engine.tokenize(PROMPTS[i % 4]), options) for t in c.token_ids]
    more = engine.tokenize(PROMPTS[i % 4]) + said + engine.tokenize(" and", add_special=False)
    rest = [t for c in talk.stream(more, options) for t in c.token_ids]
    talk.close()
    return said, rest


def mapped(engine, i):
    """Rows with seeds and lengths of their own, and their vectors."""
    own = {"seed": oxd.col("s"), "max_tokens": oxd.col("n"), "details": ["token_ids"], "ignore_eos": True}
    batches = [{"p": [prompt, None], "s": [i, i], "n": [4 + i % 3, 1]} for prompt in PROMPTS]
    found = [batch["answer_token_ids"] for batch in oxd.Generate(engine, prompt="p", **own).map(batches)]
    vectors = oxd.Embed(engine, input="p")({"p": PROMPTS[: i % 4 + 1]})["vector"]
    return found, [vector.tobytes() for vector in vectors]


def numbers(engine, i):
    """What only must not fail: it tells of the moment."""
    engine.metrics_snapshot()
    engine.memory_bytes()
    engine.loras  # noqa: B018
    engine.position  # noqa: B018
    if i % 3 == 0:
        engine.shrink_to_fit()
    return engine.context_size, engine.n_vocab, engine.is_eos(2)


def tokenizer(engine, i):
    t = engine.tokenizer
    found = [t.encode(p + str(i), add_special=bool(i % 2)) for p in PROMPTS]
    pieces = t.stream()
    text = "".join(pieces.push(token) for token in found[0])
    return found, [t.decode(f) for f in found], [t.decode_bytes(f) for f in found], text


def states(grammar, vocabulary, i):
    """A state of a grammar that all threads share."""
    state, out = grammar.state(vocabulary), np.zeros(vocabulary.n_words, np.uint32)
    found = []
    for byte in f'ab{"c" * i} d. "x y" e.'.encode():
        found.append((state.mask(out), out.tobytes(), state.is_complete))
        state.advance(bytes([byte]))
    twin = state.fork()
    twin.rollback(3)
    return found, grammar.accepts("a b c."), twin.forced_bytes(3), twin.mask(out)


def every_call(engine, adapter, beside):
    """{name: a call with a number that gives what may depend on the number alone}

    beside: what all threads use with the engine, by name (`stress.Beside`).
    """
    shared = ox.Grammar.parse(GRAMMAR)
    t = engine.tokenizer
    vocabulary = Vocabulary([None if t.is_special(i) else t.token_bytes(i) for i in range(t.n_vocab)], t.eog_ids)

    def of(call):
        return lambda i: call(engine, i)

    def generate(**options):
        return lambda i: ids(engine.generate(PROMPTS[i % 4], seed=i, **DRAWN, **options))

    return {
        "generate": generate(),
        "greedy": generate(temperature=0.0),
        "several": lambda i: ids(engine.generate(PROMPTS[: i % 3 + 1], seed=i, **DRAWN)),
        "n": lambda i: ids(engine.generate(PROMPTS[i % 4], n=3, seed=i, **DRAWN)),
        "grammar": generate(grammar=GRAMMAR),
        "schema": generate(json_schema=SCHEMA),
        "dry": generate(dry_multiplier=0.8, mirostat=0, typical_p=0.9),
        "mirostat": generate(mirostat=2),
        "guesses": generate(draft="lookup"),
        "draft model": generate(draft=beside.draft),
        "decoder": generate(draft=beside.decoder),
        "all drafts": generate(draft=["lookup", beside.decoder, beside.draft]),
        "speculative": functools.partial(speculative, beside.speculative),
        "ended": generate(stopping_criteria=lambda ids, logits: sum(ids) % 5 == 0 and logits[3] < 1e9, echo=True),
        "infill": lambda i: ids(beside.pushing.infill(PROMPTS[i % 4], "the end", lora=[], seed=i, **DRAWN)),
        "as dicts": lambda i: engine.generate(PROMPTS[i % 4], seed=i, logprobs=2, **DRAWN).to_dict()["logprobs"],
        "stream": lambda i: [c.text for c in engine.stream(PROMPTS[i % 4], seed=i, **DRAWN)],
        "half a stream": of(half_a_stream),
        "chat": lambda i: ids(engine.chat([{"role": "user", "content": f"hi {i}"}], seed=i, **DRAWN)),
        "prompts": lambda i: engine.chat_tokens(talk(i), chat_template=TEMPLATE, continue_final_message=True),
        "reasoning": lambda i: answered(engine, i),
        "conversation": of(conversation),
        "batch": lambda i: [ids(c) for c in engine.batch(PROMPTS, seed=i, max_in_flight=2, **DRAWN)],
        "tables": of(mapped),
        "beams": lambda i: [b.token_ids for b in engine.beam_search(PROMPTS[i % 4], beam_width=2, max_new_tokens=5)],
        "saved beams": of(search_saved_in_the_middle),
        "session": of(session),
        "sampled": of(sampled),
        "logits": lambda i: engine.forward_logits(engine.tokenize(PROMPTS[i % 4])).tobytes(),
        "embed": lambda i: engine.embed(PROMPTS[i % 4]).tobytes(),
        "saved": of(saved_in_the_middle),
        "coroutines": of(coroutines),
        "adapter": of(with_adapter),
        "own adapter": of(functools.partial(own_adapter, adapter)),
        "pushed": functools.partial(pushed_and_popped, beside.whole, adapter),
        "pushed by many": functools.partial(pushed_by_many, beside.pushing),
        "rerank": functools.partial(ranked, beside.ranker),
        "denoised": lambda i: ids(beside.denoiser.diffuse(PROMPTS[i % 4], max_tokens=9, temperature=1.0, seed=i)),
        "numbers": of(numbers),
        "tokenizer": of(tokenizer),
        "states": functools.partial(states, shared, vocabulary),
    }
