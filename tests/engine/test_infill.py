"""Fill-in-the-middle: the prompt that is made of two texts, and what comes of it."""

import asyncio

import pytest

import oxillama as ox
from oxillama.errors import ConfigError, ContextOverflowError, TokenizerError, UnsupportedModelError
from tests.fakes import make_engine
from tests.models.bert import changed
from tests.models.tiny import Shape, tiny
from tests.speculative.drafting import same
from tests.tokenizer.build import P, byte_level, make, recorded

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")
# 256 bytes, one merge, and these.
PRE, SUF, MID, PAD, REPO, SEP, BOS = range(257, 264)
NAMES = ("fim_pre", "fim_suf", "fim_mid")
CODE = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))\n"
ASKED = {"max_tokens": 8, "seed": 3}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """A model whose file has the tokens by their texts, and BOS."""
    path = tiny("llama", tmp_path_factory.mktemp("models"), Shape(n_vocab=264))
    vocabulary = byte_level(["q q"], (*QWEN, "<s>"))
    del vocabulary["general.architecture"]
    more = {P + "bos_token_id": BOS, P + "add_bos_token": True}
    with ox.load(changed(path, vocabulary | more), num_threads=1) as engine:
        yield engine


def letters(engine, text):
    """Tokens of bytes, one by one."""
    pieces = {engine.tokenizer.token_bytes(i): i for i in range(256)}
    return [pieces[bytes([byte])] for byte in text.encode()]


def test_the_prompt_is_prefix_suffix_middle(engine):
    before, after = (letters(engine, text) for text in CODE)
    assert engine.infill_tokens(*CODE) == [BOS, PRE, *before, SUF, *after, MID]
    assert engine.infill_tokens(*CODE, suffix_first=True) == [BOS, SUF, *after, PRE, *before, MID]
    assert engine.infill_tokens("", "") == [BOS, PRE, SUF, MID]


def test_what_the_texts_hold_is_text(engine):
    assert engine.infill_tokens("<|fim_middle|>", "<s>") == [
        BOS, PRE, *letters(engine, "<|fim_middle|>"), SUF, *letters(engine, "<s>"), MID
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["prefix", "suffix"])
def test_texts_far_beyond_the_context_are_refused(engine, name):
    with pytest.raises(ContextOverflowError, match=rf"{name} has at least \d+ tokens and context_size is"):
        engine.infill(**{"prefix": "a", "suffix": "b", name: "x" * 100_000_000})


@pytest.mark.parametrize("suffix_first", [False, True])
def test_it_is_the_text_after_that_prompt(engine, suffix_first):
    ids = engine.infill_tokens(*CODE, suffix_first=suffix_first)
    expected = engine.generate(ids, **ASKED)
    found = engine.infill(*CODE, suffix_first=suffix_first, **ASKED)
    assert same(found, expected)
    chunks = list(engine.infill(*CODE, suffix_first=suffix_first, stream=True, **ASKED))
    assert "".join(c.text for c in chunks) == expected.text
    heard = []
    engine.infill(*CODE, suffix_first=suffix_first, on_token=heard.append, **ASKED)
    assert "".join(heard) == expected.text
    assert [same(r, e) for r, e in zip(engine.infill(*CODE, suffix_first=suffix_first, n=2, **ASKED),
                                       engine.generate(ids, n=2, **ASKED), strict=True)] == [True, True]  # fmt: skip
    with ox.SpeculativeEngine(engine, "lookup") as spec:
        assert same(spec.infill(*CODE, suffix_first=suffix_first, **ASKED), expected)

    async def use():
        many = ox.AsyncEngine(engine)
        stream = await many.infill(*CODE, suffix_first=suffix_first, stream=True, **ASKED)
        return await many.infill(*CODE, suffix_first=suffix_first, **ASKED), [c async for c in stream]

    awaited, streamed = asyncio.run(use())
    assert same(awaited, expected)
    assert "".join(c.text for c in streamed) == expected.text


@pytest.mark.parametrize("end", [PAD, REPO, SEP])
def test_tokens_of_padding_and_of_other_files_end_it(engine, end):
    r = engine.infill(*CODE, logit_bias={end: 1e9})
    assert (r.text, r.finish_reason, r.stop_reason) == ("", "stop", end)


def test_a_model_without_the_tokens():
    engine = make_engine()
    engine.tokenizer.fim_pre_id = engine.tokenizer.fim_suf_id = engine.tokenizer.fim_mid_id = None
    with pytest.raises(UnsupportedModelError, match=r"no fill-in-the-middle tokens fim_pre, fim_suf, fim_mid: .*give"):
        engine.infill("a", "b")
    engine.tokenizer.fim_pre_id, engine.tokenizer.fim_mid_id = 3, 4
    with pytest.raises(UnsupportedModelError, match=r"no fill-in-the-middle tokens fim_suf: .*ggml\.fim_suf_token_id"):
        engine.infill("a", "b", stream=True)


def test_their_ids_can_be_given():
    ids = {P + f"{name}_token_id": i for i, name in enumerate(NAMES, 50)}
    with pytest.raises(UnsupportedModelError), ox.load(num_threads=1) as engine:
        engine.infill("a", "b")
    with ox.load(num_threads=1, overrides=ids) as engine:
        assert [i for i in engine.infill_tokens("", "") if i != engine.tokenizer.bos_id] == [50, 51, 52]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((3, "b"), {}, ConfigError, "prefix must be a str, not int"),
        (("a", None), {}, ConfigError, "suffix must be a str, not NoneType"),
        (("a", "\ud800"), {}, TokenizerError, "lone surrogate"),
        (("a", "b"), {"suffix_first": 1}, ConfigError, "suffix_first must be True or False, not 1"),
        (("a", "b"), {"echo": True}, ConfigError, "echo is not for infill"),
        (("a", "b"), {"stream": True, "on_token": print}, ConfigError, "on_token is for stream=False"),
        (("a", "b"), {"max_token": 3}, TypeError, r"infill\(\) got an .* 'max_token'; did you mean 'max_tokens'"),
    ],
)
def test_arguments_that_can_not_be(engine, arguments, options, error, message):
    with pytest.raises(error, match=message):
        engine.infill(*arguments, **options)
    with pytest.raises(error, match=message):
        asyncio.run(ox.AsyncEngine(engine).infill(*arguments, **options))


# ---- what a file says of them


def fim(tokenizer):
    return [tokenizer.fim_pre_id, tokenizer.fim_suf_id, tokenizer.fim_mid_id]


TEXTS = [
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<\uff5cfim▁begin\uff5c>", "<\uff5cfim▁hole\uff5c>", "<\uff5cfim▁end\uff5c>"),
    ("<PRE>", "<SUF>", "<MID>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("<|prefix|>", "<|suffix|>", "<|middle|>"),
]


@pytest.mark.parametrize("texts", [QWEN[:3], *TEXTS])
def test_by_their_texts(texts):
    assert fim(make(byte_level(["q q"], texts))) == [257, 258, 259]


def test_by_keys_of_which_the_older_ones_count_less():
    meta = byte_level(["q q"], ("<x>", "<y>", *QWEN[:3]))
    old = {"prefix_token_id": 1, "suffix_token_id": 2, "middle_token_id": 3}
    assert fim(make(meta, **old)) == [1, 2, 3]
    assert fim(make(meta, **old, fim_suf_token_id=257)) == [1, 257, 3]
    assert fim(make(meta)) == [259, 260, 261]
    assert fim(make(byte_level(["q q"]))) == [None] * 3


@pytest.mark.parametrize("key", ["fim_pre", "fim_suf", "fim_mid", "prefix", "suffix", "middle"])
def test_keys_out_of_range(key):
    with pytest.raises(TokenizerError, match=rf"ggml.{key}_token_id is 257, outside the vocabulary 0..256"):
        make(byte_level(["q q"]), **{f"{key}_token_id": 257})


@pytest.mark.parametrize("text", ["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<|fim_repo|>", "<|repo_name|>",
                                  "<fim-repo>", "<|file_sep|>"])  # fmt: skip
def test_texts_that_end_generation(text):
    for kind in (1, 3, 4):
        assert make(byte_level(["q q"], (text,)), token_type=[1] * 257 + [kind]).eog_ids == {257}


@pytest.mark.parametrize("text", ["<PAD>", "[PAD]", "<REPO>", "<reponame>"])
def test_texts_that_end_generation_as_control_tokens(text):
    assert make(byte_level(["q q"], (text,))).eog_ids == {257}
    assert make(byte_level(["q q"], (text,)), token_type=[1] * 258).eog_ids == frozenset()


def test_the_suffix_begins_without_the_space_of_sentencepiece():
    """The prefix begins a text; the suffix goes on, and must be found again as it stands."""
    vocabulary = make(recorded("llama-spm")["metadata"])
    plain = vocabulary.encode("Hello", add_special=False)
    assert [vocabulary.id_to_token(i) for i in plain] == ["▁Hello"]
    going_on = vocabulary.encode("Hello", add_special=False, continuation=True)
    assert vocabulary.decode_bytes(going_on, continuation=True) == b"Hello"
    assert going_on != plain
    assert vocabulary.encode("<s>Hello", add_special=False, parse_special=True, continuation=True)[1:] == plain
