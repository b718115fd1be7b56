"""Stop strings that are texts of control tokens: they end the text where the token comes, however it is served."""

import asyncio

import pytest

import oxillama as ox
from tests.speculative.drafts import Oracle

PROMPT = "Once upon a time"
USER, ASSISTANT, END, EOS = "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"
BIAS = {USER: 10.0, ASSISTANT: 8.5, END: 9.0, EOS: 12.5}


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1) as engine:
        yield engine


def ids_of(engine, *texts):
    return [engine.tokenizer.token_to_id(text) for text in texts]


def often(engine, *texts, by=0.0, **options):
    """Settings with which these tokens come now and then, among others."""
    bias = {token: BIAS[text] + by for text, token in zip(texts, ids_of(engine, *texts), strict=True)}
    return {"logit_bias": bias, "temperature": 1.0, "top_p": 1.0, "max_tokens": 24, **options}


def cut(engine, whole, stop):
    """(text, ids, reason, stop reason) with stop strings, of a completion without any that ignores ends."""
    tokenizer = engine.tokenizer
    written = ""
    for n, token in enumerate(whole.token_ids, 1):
        written += tokenizer.token_bytes(token).decode()  # of control tokens too
        found = [(written.find(text), len(text), text) for text in stop if text in written]
        if found:
            start, _, text = min(found)
            ids = whole.token_ids[:n]
            shown = written[:start]
            for control in BIAS:
                shown = shown.replace(control, "")
            return shown, ids, "stop", text
    return whole.text, whole.token_ids, "length", None


def told(r):
    return r.text, r.token_ids, r.finish_reason, r.stop_reason


def told_of(chunks):
    ids = [token for chunk in chunks for token in chunk.token_ids]
    return "".join(chunk.text for chunk in chunks), ids, chunks[-1].finish_reason, chunks[-1].stop_reason


@pytest.mark.parametrize("stop", [[USER], [ASSISTANT, USER], [USER + USER], [f"a{USER}", "the"], [EOS], [END]])
def test_the_text_ends_where_the_token_comes(engine, stop):
    """And where a stop string that holds its text among other text does."""
    n_stopped = 0
    for seed in range(8):
        options = often(engine, *BIAS, seed=seed, ignore_eos=True)
        whole = engine.generate(PROMPT, **options)
        expected = cut(engine, whole, stop)
        n_stopped += expected[2] == "stop"
        assert told(engine.generate(PROMPT, stop=stop, **options)) == expected
        assert told_of(list(engine.stream(PROMPT, stop=stop, **options))) == expected
    assert n_stopped


@pytest.mark.parametrize("stop", [[USER], ["<|user|>"[:4], USER], [f"{USER}{END}", USER]])
def test_every_way_to_ask_gives_the_same(engine, stop):
    prompts = [PROMPT, "The cat", "A dog and"]
    options = often(engine, USER, seed=3, stop=stop)
    expected = [told(engine.generate(prompt, **options)) for prompt in prompts]
    assert "stop" in [reason for _, _, reason, _ in expected]
    assert [told(r) for r in engine.generate(prompts, **options)] == expected
    assert [told(r) for r in engine.batch(prompts, **options)] == expected
    for each, text in zip(engine.generate(prompts, n=2, **options), expected, strict=True):
        assert told(each[0]) == text

    async def ask():
        many = ox.AsyncEngine(engine)
        streams = [[chunk async for chunk in many.stream(prompt, **options)] for prompt in prompts]
        return await many.generate(prompts, **options), [told_of(chunks) for chunks in streams]

    awaited, streamed = asyncio.run(ask())
    assert ([told(r) for r in awaited], streamed) == (expected, expected)
    speculative = ox.SpeculativeEngine(engine, draft="lookup")
    assert [told(speculative.generate(prompt, **options)) for prompt in prompts] == expected


def test_tokens_that_were_guessed(engine):
    """The draft knows what comes, behind the end too."""
    options = often(engine, USER, seed=3)
    ids = engine.tokenize(PROMPT)
    whole = engine.generate(ids, **options)
    for stop in ([USER], [f"{USER}x", "a"]):
        alone = engine.generate(ids, stop=stop, **options)
        for every in (0, 3):
            draft = Oracle([[*ids, *whole.token_ids]], every)
            assert told(engine.generate(ids, stop=stop, draft=draft, adaptive=False, **options)) == told(alone)


def test_the_token_that_ends_the_text_for_the_model(engine):
    """The stop string is the reason then, and the token stays out of the text as it does without one."""
    options = often(engine, END, seed=1)
    alone = engine.generate(PROMPT, **options)
    assert (alone.finish_reason, alone.stop_reason) == ("stop", *ids_of(engine, END))
    named = engine.generate(PROMPT, stop=[END], logprobs=1, **options)
    assert told(named) == (alone.text, alone.token_ids, "stop", END)
    assert named.end.token_id == alone.stop_reason
    within = engine.generate(PROMPT, stop=[f"{alone.text[-3:]}{END}"], **options)
    assert told(within) == (alone.text[:-3], alone.token_ids, "stop", f"{alone.text[-3:]}{END}")
    other = engine.generate(PROMPT, stop=[f"x{END}", EOS], **options)
    assert told(other) == told(alone)


@pytest.mark.parametrize("ignore_eos", [False, True])
@pytest.mark.parametrize("stop", [USER, END])
def test_it_stays_where_it_is_asked_for(engine, stop, ignore_eos):
    options = often(engine, stop, by=2.0, seed=1, ignore_eos=ignore_eos)
    cut_off = engine.generate(PROMPT, stop=[stop], **options)
    kept = engine.generate(PROMPT, stop=[stop], include_stop=True, **options)
    (token,) = ids_of(engine, stop)
    ids = cut_off.token_ids if cut_off.token_ids[-1:] == [token] else [*cut_off.token_ids, token]
    assert told(kept) == (cut_off.text + stop, ids, "stop", stop)


def test_not_before_so_many_tokens(engine):
    options = often(engine, USER, by=20.0, seed=1, stop=[USER])
    assert len(engine.generate(PROMPT, **options).token_ids) == 1
    r = engine.generate(PROMPT, min_tokens=5, **options)
    assert (len(r.token_ids), r.finish_reason, r.stop_reason) == (6, "stop", USER)


def test_text_that_spells_it_counts_too(engine):
    spelled = engine.generate(PROMPT, grammar='root ::= "ab <|user|> cd"', stop=[USER], seed=1)
    assert (spelled.text, spelled.finish_reason, spelled.stop_reason) == ("ab ", "stop", USER)


def test_in_chat_with_reasoning_and_calls(engine):
    """Whose own marks may be control tokens: these have a text, and stop strings are found in it."""
    marks = ox.ReasoningFormat(ASSISTANT, USER)
    options = often(engine, USER, ASSISTANT, seed=2, reasoning=marks)
    messages = [{"role": "user", "content": "hi"}]
    whole = engine.chat(messages, **options)
    for stop in ([USER], ["<|system|>"], [f"{USER}x"]):
        r = engine.chat(messages, stop=stop, **options)
        if USER in whole.raw and stop == [USER]:
            assert (r.raw, r.finish_reason, r.stop_reason) == (whole.raw.partition(USER)[0], "stop", USER)
        else:
            assert told(r) == told(whole)
    calls = ox.ToolFormat(ASSISTANT, END)
    tools = [{"name": "f", "parameters": {}}]
    options = often(engine, ASSISTANT, by=20.0, tools=tools, tool_format=calls)
    r = engine.chat(messages, stop=[ASSISTANT], **options)
    assert (r.tool_calls, r.finish_reason, r.stop_reason) == ([], "stop", ASSISTANT)


@pytest.mark.parametrize("stop", [[USER], [f"{USER}zz", END], [f"e{USER}"]])
@pytest.mark.parametrize("keeps", [False, True])
def test_a_snapshot_goes_on_as_it_would_have(engine, stop, keeps):
    """From within a stop string too: what may be the beginning of one is found again by its tokens."""
    for seed in (1, 2, 3):
        options = often(engine, USER, END, seed=seed, stop=stop, include_stop=keeps, logprobs=0)
        whole = list(engine.stream(PROMPT, **options))
        for n in range(len(whole)):
            stream = engine.stream(PROMPT, **options)
            first = [next(stream) for _ in range(n)]
            if n:
                data = stream.snapshot_bytes()
                assert told_of([*first, *engine.resume(data)]) == told_of(whole)
            stream.close()


def test_a_finished_text_that_was_not_read(engine):
    options = often(engine, END, seed=1, stop=[END], logprobs=0)
    for keeps in (False, True):
        stream = engine.stream(PROMPT, include_stop=keeps, n=2, **options)
        first = next(stream)
        for _ in range(40):  # the other one is finished meanwhile
            data = stream.snapshot_bytes()
            more = next(stream, None)
            if more is None:
                break
        assert first
        rest = list(engine.resume(data))
        assert all(chunk.stop_reason in (None, END) for chunk in rest)
