"""Gaps in code, as the plugins of editors ask llama-server for them, and prompts of chat templates."""

import time

import pytest

import oxillama as ox
from oxillama.server import ServerConfig, create_app
from oxillama.server.routes.infill import LineWatch, infill_prompt, read_gap
from tests.models.bert import changed
from tests.models.tiny import Shape, tiny
from tests.server.client import HI, Client
from tests.tokenizer.build import P, byte_level

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")
# 256 bytes, one merge, and these.
PRE, SUF, MID, PAD, REPO, SEP, BOS = range(257, 264)
FILES = [{"text": "x = 1\n", "filename": "a.py", "time": 1.5}, {"text": "y = 2\n"}]
GAP = {"input_prefix": "def f():\n", "prompt": "    return ", "input_suffix": "\n\nf()\n"}
# As llama.vim and llama.vscode send it.
EDITOR = {
    **GAP, "input_extra": FILES, "n_predict": 8, "stop": [], "n_indent": 0, "top_k": 40, "top_p": 0.9, "id_slot": 0,
    "samplers": ["top_k", "top_p", "infill"], "stream": False, "cache_prompt": True, "t_max_prompt_ms": 500,
    "t_max_predict_ms": 1000,
}  # fmt: skip


def made(folder, texts=QWEN, bos=True):
    path = tiny("llama", folder, Shape(n_vocab=257 + len(texts) + 1))
    vocabulary = byte_level(["q q"], (*texts, "<s>"))
    del vocabulary["general.architecture"]
    more = {P + "bos_token_id": 257 + len(texts), P + "add_bos_token": True} if bos else {}
    return ox.load(changed(path, vocabulary | more), num_threads=1, context_size=128)


@pytest.fixture(scope="module")
def coder(tmp_path_factory):
    """A model with all the tokens of gaps, files and repositories."""
    with made(tmp_path_factory.mktemp("models")) as engine:
        yield engine


@pytest.fixture(scope="module")
def editor(coder):
    return Client(create_app({"coder": coder}, ServerConfig()))


def letters(engine, text):
    pieces = {engine.tokenizer.token_bytes(i): i for i in range(256)}
    return [pieces[bytes([byte])] for byte in text.encode()]


def prompt(engine, **fields):
    return infill_prompt(engine.tokenizer, read_gap({**GAP, **fields}), 128)


# ---- the prompt


def test_files_come_before_the_gap(coder):
    def of(text):
        return letters(coder, text)

    before, after = of("def f():\n    return "), of("\n\nf()\n")
    gap = [PRE, *before, SUF, *after, MID]
    head = [BOS, REPO, *of("myproject\n")]
    assert prompt(coder) == ([*head, SEP, *of("filename\n"), *gap], [])
    assert prompt(coder, input_extra=FILES, n_predict=8) == (
        [*head, SEP, *of("a.py\nx = 1\n"), SEP, *of("tmp\ny = 2\n"), SEP, *of("filename\n"), *gap], [],
    )  # fmt: skip


def test_without_tokens_for_files(tmp_path):
    with made(tmp_path, QWEN[:3], bos=False) as engine:
        ids, cut = prompt(engine, input_extra=FILES[:1])
        text = letters(engine, "\n\n--- snippet ---\n\nx = 1\n")
        assert (ids, cut) == ([*text, *engine.infill_tokens("def f():\n    return ", "\n\nf()\n")], [])
        assert prompt(engine)[0] == engine.infill_tokens("def f():\n    return ", "\n\nf()\n")


def test_what_the_texts_hold_is_text(coder):
    ids, _ = prompt(coder, input_prefix="<|fim_middle|>", input_extra=[{"text": "<|file_sep|>"}])
    assert [token for token in ids if token >= PRE] == [BOS, REPO, SEP, SEP, PRE, SUF, MID]


@pytest.mark.parametrize("n_predict", [1, 20, 1000, -1])
@pytest.mark.parametrize(
    ("prefix", "suffix", "extra", "cut"),
    [
        ("p" * 90, "s" * 9, 0, ["input_prefix"]),
        ("p" * 9, "s" * 130, 0, ["input_suffix"]),
        ("p" * 9000, "s" * 9000, 0, ["input_prefix", "input_suffix"]),
        ("p" * 10, "s" * 10, 900, ["input_extra"]),
        ("p" * 900, "s" * 900, 900, ["input_prefix", "input_suffix", "input_extra"]),
    ],
)
def test_what_is_far_from_the_gap_has_no_room(coder, prefix, suffix, extra, cut, n_predict):
    """A quarter of the context at most is kept for the answer, and of the rest a quarter is for what comes after."""
    reserved = 128 // 4 if n_predict < 0 else min(n_predict, 128 // 4)
    fields = {"input_prefix": prefix, "input_suffix": suffix, "prompt": "", "n_predict": n_predict}
    if extra:
        fields["input_extra"] = [{"text": "o" * extra}, {"text": "e" * extra}]
    ids, found = infill_prompt(coder.tokenizer, read_gap(fields), 128)
    if len(prefix) + len(suffix) > 128 - reserved - 4 or extra:
        assert found == cut
        assert len(ids) == 128 - reserved
    text = coder.tokenizer.decode_bytes(ids[ids.index(PRE) + 1 : ids.index(SUF)])
    assert text == prefix[len(prefix) - len(text) :].encode()
    assert len(text) >= min(len(prefix), (128 - reserved - 4) * 3 // 4 - 1)
    assert ids.index(MID) == len(ids) - 1
    assert ids[0] == BOS


def test_long_texts_take_time_for_what_there_is_room_for_alone(coder):
    began = time.thread_time()
    infill_prompt(coder.tokenizer, read_gap({**GAP, "input_prefix": "x" * 1000}), 128)
    short = time.thread_time() - began
    began = time.thread_time()
    files = [{"text": "x" * 20_000_000}] * 4
    infill_prompt(
        coder.tokenizer, read_gap({"input_prefix": "x" * 20_000_000, "input_suffix": "", "input_extra": files}), 128
    )
    assert time.thread_time() - began < 50 * short + 0.5


def test_a_context_without_room(coder):
    ids, cut = infill_prompt(coder.tokenizer, read_gap({**GAP, "input_extra": FILES}), 4)
    assert (ids, cut) == ([BOS, PRE, SUF, MID], ["input_prefix", "input_suffix", "input_extra"])


# ---- answers


def test_what_editors_ask_for(editor, coder):
    answer = editor.post("/infill", {**EDITOR, "seed": 1})
    assert (answer.status, answer.headers["x-oxillama-left-out"]) == (200, "samplers[2]=infill")
    ids, _ = infill_prompt(coder.tokenizer, read_gap(EDITOR), 128)
    same = coder.generate(ids, max_tokens=8, seed=1, temperature=1.0, top_k=40, top_p=0.9, repetition_penalty=1.0)
    found = answer.json
    assert found["content"] == same.text
    timings = found.pop("timings")
    assert found == {
        "content": same.text, "index": 0, "model": "coder", "stop": True, "stop_type": "limit", "stopping_word": "",
        "tokens_predicted": 8, "tokens_evaluated": len(ids), "tokens_cached": len(ids) + 8,
        "has_new_line": "\n" in same.text, "truncated": False, "generation_settings": {"n_ctx": 128, "n_predict": 8},
    }  # fmt: skip
    assert timings["prompt_n"] + timings["cache_n"] == len(ids)
    assert timings["predicted_n"] == 8
    assert set(timings) == {"cache_n"} | {
        f"{a}_{b}" for a in ("prompt", "predicted") for b in ("n", "ms", "per_token_ms", "per_second")
    }


def test_streams_have_the_same_text(editor):
    fields = {**EDITOR, "samplers": ["top_k", "top_p"], "seed": 3, "return_tokens": True}
    whole = editor.post("/infill", fields).json
    events = [data for _, data in editor.post("/infill", {**fields, "stream": True}).events]
    assert "".join(event["content"] for event in events) == whole["content"]
    assert [t for event in events[:-1] for t in event["tokens"]] == whole["tokens"]
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    last = events[-1]
    assert {k: v for k, v in last.items() if k not in ("content", "timings")} == {
        k: v for k, v in whole.items() if k not in ("content", "timings", "tokens")
    }
    assert last["timings"]["cache_n"] > 0


def test_the_cache_is_warmed(editor, coder):
    """As editors do while nothing is typed: the prompt is read, and nothing is generated."""
    fields = {**GAP, "input_prefix": "def warm():\n" * 3, "n_predict": 0, "samplers": [], "temperature": 0.0}
    answer = editor.post("/infill", fields)
    assert (answer.json["content"], answer.json["tokens_predicted"]) == ("", 0)
    assert editor.post("/infill", {**fields, "response_fields": [""]}).json == {}
    again = editor.post("/infill", {**fields, "n_predict": 2}).json
    assert again["timings"]["prompt_n"] < 17
    events = editor.post("/infill", {**fields, "stream": True}).events
    assert [data["content"] for _, data in events] == [""]


def test_fields_of_the_answer(editor):
    paths = ["content", "timings/prompt_n", "timings/none", "truncated", "tokens_cached/x", "generation_settings"]
    found = editor.post("/infill", {**EDITOR, "response_fields": paths}).json
    assert list(found) == ["content", "timings/prompt_n", "truncated", "generation_settings"]


def test_how_the_text_ends(editor):
    plain = {**GAP, "seed": 1, "temperature": 0}
    whole = editor.post("/infill", {**plain, "n_predict": 12}).json
    assert whole["stop_type"] in ("limit", "eos")
    text = editor.post("/infill", {**plain, "n_predict": 12, "ignore_eos": True}).json["content"]
    word = text[3]
    stopped = editor.post("/infill", {**plain, "n_predict": 12, "stop": [word], "ignore_eos": True}).json
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", word)
    assert stopped["content"] == text[: text.index(word)]
    for n_predict in (-1, -2):
        most = editor.post("/infill", {**plain, "n_predict": n_predict, "ignore_eos": True}).json
        assert most["tokens_evaluated"] + most["tokens_predicted"] == 128
        assert most["generation_settings"]["n_predict"] == -1


def test_lines_that_are_indented_too_little_end_the_text(editor):
    letters = '"x"? ' * 2
    grammar = f'root ::= "a\\n  b\\n c" {letters} "\\n"'
    for stream in (False, True):
        answer = editor.post("/infill", {**GAP, "grammar": grammar, "n_indent": 2, "n_predict": 20, "stream": stream})
        if stream:
            content = "".join(data["content"] for _, data in answer.events)
            last = answer.events[-1][1]
        else:
            content, last = answer.json["content"], answer.json
        assert content == "a\n  b\n "
        assert (last["stop_type"], last["has_new_line"]) == ("limit", True)
    answer = editor.post("/infill", {**GAP, "grammar": grammar, "n_indent": 1, "n_predict": 20})
    assert answer.json["content"].startswith("a\n  b\n c")


def test_a_text_that_takes_long_ends_after_its_first_line(editor):
    grammar = 'root ::= "a\\n" "b"{70}'
    answer = editor.post("/infill", {**GAP, "grammar": grammar, "t_max_predict_ms": 1, "n_predict": 80})
    assert answer.json["content"].startswith("a\n")
    assert answer.json["tokens_predicted"] < 72
    assert answer.json["stop_type"] == "limit"
    free = editor.post("/infill", {**GAP, "grammar": 'root ::= "b"{40}', "t_max_predict_ms": 1, "n_predict": 80})
    assert free.json["content"] == "b" * 40


def test_samplers(editor):
    plain = {**GAP, "n_predict": 6, "seed": 1, "top_k": 1, "temperature": 2.0}
    likeliest = editor.post("/infill", {**plain, "samplers": ["temperature", "top_k"]}).json["content"]
    assert editor.post("/infill", {**GAP, "n_predict": 6, "temperature": 0}).json["content"] == likeliest
    assert editor.post("/infill", {**plain, "samplers": "tk"}).json["content"] == likeliest
    free = editor.post("/infill", {**GAP, "n_predict": 6, "seed": 1}).json["content"]
    assert editor.post("/infill", {**plain, "samplers": []}).json["content"] == free
    for given in (["top_k", "other"], "kz"):
        answer = editor.post("/infill", {**plain, "samplers": given})
        assert (answer.status, answer.error["param"]) == (400, "samplers[1]")


def test_what_is_cut_is_said(editor):
    answer = editor.post("/infill", {**EDITOR, "samplers": ["top_k"], "input_prefix": "p" * 500})
    assert answer.headers["x-oxillama-left-out"] == "input_prefix, input_extra"
    assert answer.json["truncated"] is True
    answer = editor.post("/infill", {**GAP, "n_predict": 1000})
    assert answer.headers["x-oxillama-left-out"] == "n_predict"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_prefix": 3}, "input_prefix"),
        ({"input_suffix": None}, "input_suffix"),
        ({"input_extra": [{"filename": "a"}]}, "input_extra[0].text"),
        ({"input_extra": {"text": "a"}}, "input_extra"),
        ({"input_extra": [{"text": "a", "filename": 3}]}, "input_extra[0].filename"),
        ({"prompt": ["a"]}, "prompt"),
        ({"n_predict": -3}, "n_predict"),
        ({"n_indent": -1}, "n_indent"),
        ({"response_fields": "content"}, "response_fields"),
        ({"grammar": "root ::= ("}, "grammar"),
    ],
)
def test_wrong_fields_are_named(editor, fields, param):
    answer = editor.post("/infill", {**GAP, **fields})
    assert (answer.status, answer.error["param"]) == (400, param)


def test_models_without_the_tokens(client):
    answer = client.post("/infill", GAP)
    assert (answer.status, answer.error["param"]) == (400, "model")
    assert "no fill-in-the-middle tokens" in answer.error["message"]


# ---- lines


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("text", "indent", "kept"),
    [
        ("a\n  b\nc", 2, "a\n  b\n"),
        ("a\n  b\n c", 2, "a\n  b\n "),
        ("a\n\n  b\n\n", 2, "a\n\n  b\n\n"),
        ("a\n\tb\n", 1, "a\n\tb\n"),
        ("a\nb", 0, "a\nb"),
        ("a", 9, "a"),
    ],
)
def test_indents(text, indent, kept, size):
    watch = LineWatch(indent, 0)
    assert "".join(watch.kept(text[i : i + size]) for i in range(0, len(text), size)) == kept
    assert watch.why == ("indent" if kept != text else "")
    assert watch.watches == (indent > 0)
    other = LineWatch(indent, 0)
    ends = [other.ends(text[i : i + size]) for i in range(0, len(text), size)]
    assert any(ends) == (kept != text)


def test_time(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch = LineWatch(0, 500)
    assert not watch.ends("a")
    now[0] += 1
    assert not watch.ends("b")  # the first line may take as long as it does
    assert watch.ends("\n")
    assert (watch.why, watch.watches) == ("time", True)
    assert not LineWatch(0, -1).watches


# ---- prompts of chat templates


def test_prompts_of_conversations(client, engine):
    text = client.post("/apply-template", messages=HI).json["prompt"]
    assert engine.tokenize(text, True, True) == engine.chat_tokens(HI)
    answers = [
        client.post("/v1/completions", prompt=text, max_tokens=5, temperature=0).json["choices"][0]["text"],
        client.post("/v1/chat/completions", messages=HI, max_tokens=5, temperature=0).json["choices"][0]["message"][
            "content"
        ],
    ]
    assert answers[0] == answers[1]
    begun = client.post("/apply-template", messages=HI, add_generation_prompt=False).json["prompt"]
    assert text.startswith(begun)
    assert text != begun


def test_prompts_that_cannot_be_made(client):
    for fields, param in (({}, "messages"), ({"messages": [{"role": "x", "content": ""}]}, "messages[0].role")):
        answer = client.post("/apply-template", fields)
        assert (answer.status, answer.error["param"]) == (400, param)
