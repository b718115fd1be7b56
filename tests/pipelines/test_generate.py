"""Generate: what `engine.generate` and `engine.chat` give for each row alone, in every kind of table and batch."""

import json
import pickle

import pytest

import oxillama as ox
import oxillama.data as oxd
from tests.fakes import assert_idle
from tests.pipelines.tables import KINDS, cells, made, names

ANIMALS = ["cat", "bear", None, "", "little fox", "bird who sang"]
TEXT = "Once there was a {animal}"
SAME = {"max_tokens": 12, "seed": 3, "temperature": 0.9}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def generate(**options):
    return oxd.Generate(engine={"num_threads": 1}, **options)


@pytest.fixture(scope="module")
def alone(engine):
    """The text of each animal's row, computed alone."""
    return [engine.generate(TEXT.format(animal=one), **SAME).text if one else None for one in ANIMALS]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_table_comes_back_with_the_texts(kind, alone):
    table = made(kind, {"n": list(range(6)), "animal": ANIMALS})
    found = generate(template=TEXT, output="story", **SAME)(table)
    assert type(found) is type(table)
    assert names(found) == ["n", "animal", "story"]
    assert names(table) == ["n", "animal"]
    assert (cells(found, "n"), cells(found, "animal")) == (list(range(6)), ANIMALS)
    assert cells(found, "story") == alone
    if kind == "pandas":
        assert found.index.equals(table.index)


def test_no_batching_changes_a_bit(alone):
    mapper = generate(template=TEXT, **SAME)
    for size in (1, 4, 7):
        batches = [{"animal": ANIMALS[i : i + size]} for i in range(0, 6, size)]
        assert [text for batch in batches for text in mapper(batch)["answer"]] == alone
        assert [text for batch in mapper.map(batches) for text in batch["answer"]] == alone


def test_map_takes_batches_as_it_needs_them(alone):
    taken = []

    def batches():
        for i in range(400):
            taken.append(i)
            yield {"animal": [None, "cat"] if i % 3 else []}

    results = generate(template=TEXT, max_in_flight=4, **SAME).map(batches())
    found = [next(results)["answer"] for _ in range(9)]
    assert found == [[], *[[None, alone[0]]] * 2] * 3
    assert len(taken) < 30
    results.close()
    assert_idle(generate(template=TEXT).engine)


def test_endless_rows_without_prompts_give_control_back():
    def batches():
        while True:
            yield {"animal": [None, ""], "n": [1, 2]}

    for options in ({}, {"on_error": "column"}):
        results = generate(template=TEXT, **options, **SAME).map(batches())
        for _ in range(100):
            assert next(results)["answer"] == [None, None]
        results.close()


def test_an_error_is_the_same_in_any_batch():
    mapper = generate(prompt="p", on_error="column", max_tokens=1)
    rows = [None, [7, "x"], "a", 5]
    whole = mapper({"p": rows})["answer_error"]
    assert [row for one in rows for row in mapper({"p": [one]})["answer_error"]] == whole
    assert [row for found in mapper.map([{"p": [one]} for one in rows]) for row in found["answer_error"]] == whole
    assert whole[1] is not None
    assert whole[3] is not None
    assert not any("prompts[" in text for text in whole if text)


def test_times_of_arrays_are_times_and_nulls_of_libraries_are_null():
    np, pd = pytest.importorskip("numpy"), pytest.importorskip("pandas")
    day = np.array(["2024-05-06T07:08:09.123456789", "NaT"], "M8[ns]")
    span = np.array([90_000_000_000, "NaT"], "m8[ns]")
    mapper = generate(template="{t:%Y-%m-%d} {d}", details=("prompt_tokens",), max_tokens=1)
    found = mapper({"t": day, "d": span})
    with ox.load(num_threads=1) as engine:
        n_tokens = engine.generate("2024-05-06 0:01:30", max_tokens=1).prompt_tokens
    assert found["answer_prompt_tokens"].tolist() == [n_tokens, None]
    nulls = [pd.NA, pd.NaT, float("nan"), np.datetime64("NaT"), np.timedelta64("NaT"), None]
    assert generate(prompt="p", max_tokens=1)({"p": nulls})["answer"] == [None] * 6


def test_a_seed_beside_a_null_is_an_integer(engine):
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"p": ["Once", "Once", "Once"], "s": [1, None, 1.5]})
    mapper = generate(prompt="p", seed=oxd.col("s"), max_tokens=4, on_error="column")
    found = mapper(table)
    assert found["answer"][0] == engine.generate("Once", seed=1, max_tokens=4).text
    assert pd.isna(found["answer_error"][1])
    assert found["answer_error"][2].startswith("ConfigError: seed must be")


def test_prompts_may_be_columns_of_text_or_token_ids(engine):
    ids = [engine.tokenize("The cat"), engine.tokenize("A")]
    expected = [engine.generate(prompt, **SAME).text for prompt in ("The cat", "A")]
    assert generate(prompt="p", **SAME)({"p": ["The cat", "A"]})["answer"] == expected
    assert generate(prompt="p", **SAME)({"p": ids})["answer"] == expected


def test_rows_have_options_of_their_own(engine):
    mapper = generate(
        prompt="p", max_tokens=oxd.col("length"), seed=oxd.col("seed"), stop=oxd.col("stop"), details=["tokens"]
    )
    rows = {"p": ["The cat"] * 4, "seed": [1, 2, None, 3], "length": [5, 9, 1, 12], "stop": [None, None, None, [" "]]}
    found = mapper(rows)
    for i in (0, 1):
        own = engine.generate("The cat", max_tokens=rows["length"][i], seed=rows["seed"][i])
        assert found["answer"][i] == own.text
    assert found["answer_tokens"][:3] == [5, 9, 1]
    assert found["answer"][3] == engine.generate("The cat", max_tokens=12, seed=3, stop=" ").text
    (user,) = engine.tokenize("<|user|>", add_special=False, parse_special=True)
    mapper = generate(prompt="p", stop="<|user|>", logit_bias={user: 30.0}, max_tokens=5, details=["finish_reason"])
    assert mapper({"p": ["The cat"]}) == {"p": ["The cat"], "answer": [""], "answer_finish_reason": ["stop"]}
    assert found["answer"][0] != found["answer"][1]


def test_details_are_columns(engine):
    names = ["finish_reason", "tokens", "prompt_tokens", "token_ids", "logprobs", "prompt_logprobs", "reasoning"]
    found = generate(prompt="p", details=names, **SAME)({"p": ["The cat", None]})
    own = engine.generate("The cat", logprobs=0, prompt_logprobs=0, **SAME)
    expected = [
        own.finish_reason, len(own.token_ids), own.prompt_tokens, own.token_ids, [t.logprob for t in own.logprobs],
        [t and t.logprob for t in own.prompt_logprobs], "",
    ]  # fmt: skip
    assert [found[f"answer_{name}"][0] for name in names] == expected
    assert [found[f"answer_{name}"][1] for name in names] == [None] * len(names)


def test_several_completions_are_a_list(engine):
    found = generate(prompt="p", n=3, details=True, **SAME)({"p": ["The cat", ""]})
    own = engine.generate("The cat", n=3, **SAME)
    assert found["answer"] == [[one.text for one in own], None]
    assert found["answer_tokens"] == [[len(one.token_ids) for one in own], None]


def test_choices(engine):
    mapper = generate(template="{p} is", choices=["good", "bad"], temperature=0)
    assert mapper({"p": ["The cat", "The storm"]})["answer"] == [
        engine.generate(f"{p} is", choices=["good", "bad"], temperature=0).text for p in ("The cat", "The storm")
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_makes_structs(engine, kind):
    mapper = generate(prompt="p", json_schema=PERSON, max_tokens=60, seed=1)
    found = mapper(made(kind, {"p": ["A person: ", None]}))
    own = json.loads(engine.generate("A person: ", json_schema=PERSON, max_tokens=60, seed=1).text)
    assert cells(found, "answer") == [own, None]
    if kind in ("arrow", "record batch"):
        assert str(found.schema.field("answer").type) == "struct<name: string, age: int64>"
    if kind == "polars":
        assert str(found.schema["answer"]) == "Struct({'name': String, 'age': Int64})"


def test_pydantic_classes_are_schemas():
    pydantic = pytest.importorskip("pydantic")
    kind = pydantic.create_model("Person", name=(str, pydantic.Field(max_length=8)), age=(int, ...))
    options = {"prompt": "p", "max_tokens": 60, "seed": 1}
    plain, of_class = (generate(json_schema=schema, **options) for schema in (PERSON, kind))
    rows = {"p": ["A person: "]}
    assert of_class(rows)["answer"][0].keys() == plain(rows)["answer"][0].keys()
    assert of_class.added() == plain.added()
    assert pickle.loads(pickle.dumps(of_class))(rows) == of_class(rows)


# ---- messages


def test_messages_are_answered_as_chat_does(engine):
    asked = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Tell of a cat."}]
    column = generate(messages="m", **SAME)
    templates = generate(messages=[asked[0], {"role": "user", "content": "Tell of a {animal}."}], **SAME)
    own = engine.chat(asked, **SAME).text
    assert column({"m": [asked, None, []]})["answer"] == [own, None, None]
    assert column({"m": ['[{"role": "user", "content": "Hi"}]']})["answer"] == [
        engine.chat([{"role": "user", "content": "Hi"}], **SAME).text
    ]
    assert templates({"animal": ["cat", None, ""]})["answer"] == [own, None, None]


@pytest.mark.parametrize("kind", KINDS[2:])
def test_messages_of_tables_have_no_null_fields(engine, kind):
    asked = [{"role": "user", "content": "Hi", "name": None}, {"role": "assistant", "content": "Yes", "name": None}]
    asked.append({"role": "user", "content": "Tell of a cat.", "name": None})
    table = made(kind, {"m": [asked]})
    plain = [{"role": one["role"], "content": one["content"]} for one in asked]
    assert cells(generate(messages="m", **SAME)(table), "answer") == [engine.chat(plain, **SAME).text]


def test_options_of_chat_and_of_its_rows(engine):
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    messages = [{"role": "user", "content": "The cat"}]
    mapper = generate(messages="m", chat_template=template, seed=oxd.col("s"), max_tokens=8)
    own = [engine.chat(messages, chat_template=template, seed=s, max_tokens=8).text for s in (1, 2)]
    assert mapper({"m": [messages] * 2, "s": [1, 2]})["answer"] == own


def test_calls_of_tools_are_a_column_of_json(engine):
    city = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": city}}]
    options = {"tools": tools, "tool_choice": "weather", "tool_format": "hermes", "max_tokens": 100, "seed": 1}
    messages = [{"role": "user", "content": "How is the weather in Rome?"}]
    own = engine.chat(messages, **options)
    found = generate(messages="m", details=["tool_calls"], **options)({"m": [messages, None]})
    assert found["answer"] == [own.text, None]
    assert json.loads(found["answer_tool_calls"][0]) == [call.to_dict() for call in own.tool_calls] != []
    assert found["answer_tool_calls"][1] is None
    unheld = {"name": "f", "parameters": {"properties": {"a": {"$ref": "https://example.org/a"}}}}
    options = {"tools": [unheld], "tool_format": "hermes", "max_tokens": 2}
    found = generate(messages="m", details=["warnings"], **options)({"m": [messages, None]})
    ((said,), nothing) = found["answer_warnings"]
    assert said.startswith("the arguments of the tool 'f' are held to no schema: ")
    assert nothing is None


def test_a_template_without_columns_is_for_every_row(engine):
    own = engine.generate("Once", **SAME).text
    for kind in KINDS:
        assert cells(generate(template="Once", **SAME)(made(kind, {"n": [1, 2]})), "answer") == [own, own]


@pytest.mark.parametrize("kind", KINDS)
def test_tables_without_rows(kind):
    found = generate(template=TEXT, details=True, **SAME)(made(kind, {"animal": []}))
    assert names(found) == ["animal", "answer", "answer_finish_reason", "answer_tokens"]
    assert cells(found, "answer") == []


# ---- what goes wrong


def test_an_interrupted_call_leaves_the_engine_as_it_was(alone):
    def interrupt(n, total):
        if n == 2:
            raise KeyboardInterrupt

    mapper = generate(template=TEXT, progress=interrupt, **SAME)
    with pytest.raises(KeyboardInterrupt):
        mapper({"animal": ANIMALS})
    assert_idle(mapper.engine)
    assert generate(template=TEXT, **SAME)({"animal": ANIMALS})["answer"] == alone


def test_a_row_that_fails_is_raised_with_its_place():
    long = "cat " * 10_000
    with pytest.raises(ox.ContextOverflowError) as info:
        generate(template=TEXT, **SAME)({"animal": ["cat", long, "cat"]})
    assert any("row 1 " in note for note in info.value.__notes__)


def test_a_row_that_fails_leaves_the_others(alone):
    animals = ["cat", "cat " * 10_000, None, "bear"]
    options = {"template": TEXT, "details": True, **SAME}
    found = generate(on_error="null", **options)({"animal": animals})
    assert found["answer"] == [alone[0], None, None, alone[1]]
    assert "answer_error" not in found
    found = generate(on_error="column", **options)({"animal": animals})
    assert found["answer"] == [alone[0], None, None, alone[1]]
    assert found["answer_error"][1].startswith("ContextOverflowError: ")
    assert [found["answer_error"][i] for i in (0, 2, 3)] == [None] * 3
    assert found["answer_tokens"][1] is None


@pytest.mark.parametrize(
    ("options", "row", "error"),
    [
        ({"prompt": "p", "seed": oxd.col("s")}, {"p": "a", "s": -1}, "ConfigError: seed must be from 0"),
        ({"prompt": "p", "choices": oxd.col("s")}, {"p": "a", "s": [1]}, "ConfigError: choices[0] must be a str"),
        ({"prompt": "p"}, {"p": [1, 1 << 40]}, "TokenizerError"),
        ({"prompt": "p"}, {"p": 5}, "ConfigError: prompt must be text"),
        ({"messages": "p"}, {"p": "[" * 200_000}, "ConfigError: messages must be a list, or JSON"),
        ({"template": "{p:.2f}"}, {"p": "x"}, "ConfigError: the template '{p:.2f}' doesn't fit"),
        ({"messages": "p"}, {"p": "{"}, "ConfigError: messages must be a list, or JSON"),
        ({"messages": "p"}, {"p": [{"role": "user"}]}, "MessageError"),
        ({"messages": "p"}, {"p": 7}, "MessageError"),
        ({"prompt": "p", "json_schema": PERSON, "max_tokens": 3}, {"p": "a"}, "GenerateError: the JSON text of 3"),
    ],
)  # fmt: skip
def test_errors_of_rows(options, row, error):
    options = {"max_tokens": 4, **options}
    found = generate(on_error="column", **options)({name: [cell, None] for name, cell in row.items()})
    assert found["answer_error"][0].startswith(error)
    assert found["answer"][0] is None
    assert found["answer_error"][1] is None
    kind = getattr(ox, error.partition(":")[0])
    with pytest.raises(kind):
        generate(**options)({name: [cell] for name, cell in row.items()})


def test_a_text_that_was_cut_off_keeps_its_details():
    mapper = generate(prompt="p", json_schema=PERSON, max_tokens=3, details=True, on_error="null")
    found = mapper({"p": ["a"]})
    assert (found["answer"], found["answer_finish_reason"], found["answer_tokens"]) == ([None], ["length"], [3])


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({}, ox.ConfigError, "one of prompt, template and messages"),
        ({"prompt": "p", "template": "{p}"}, ox.ConfigError, "one of prompt, template and messages"),
        ({"prompt": ""}, ox.ConfigError, "prompt must be the name of a column"),
        ({"template": "{}"}, ox.ConfigError, "template must name a column"),
        ({"template": "{p.__class__}"}, ox.ConfigError, "without attributes"),
        ({"template": "{p[0]}"}, ox.ConfigError, "without attributes or indices"),
        ({"template": "{p:{w}}"}, ox.ConfigError, "plain formats"),
        ({"template": "{p"}, ox.ConfigError, "template can't be read"),
        ({"template": 7}, ox.ConfigError, "template must be text"),
        ({"messages": []}, ox.ConfigError, "messages must be"),
        ({"messages": ["a"]}, ox.ConfigError, "messages must be"),
        ({"prompt": "p", "max_tokns": 3}, TypeError, "did you mean 'max_tokens'"),
        ({"prompt": "p", "tools": []}, TypeError, "tools"),
        ({"prompt": "p", "max_tokens": -1}, ox.ConfigError, "max_tokens"),
        ({"prompt": "p", "temperature": "hot"}, ox.ConfigError, "temperature"),
        ({"prompt": "p", "max_in_flight": 0}, ox.ConfigError, "max_in_flight"),
        ({"prompt": "p", "on_token": print}, ox.ConfigError, "give progress="),
        ({"prompt": "p", "logprobs": 3}, ox.ConfigError, "details="),
        ({"prompt": "p", "n": oxd.col("n")}, ox.ConfigError, "n must be the same for all rows"),
        ({"prompt": "p", "json_schema": oxd.col("n")}, ox.ConfigError, "json_schema must be the same"),
        ({"prompt": "p", "json_schema": "{"}, ox.ConfigError, "json_schema must be"),
        ({"prompt": "p", "json_schema": {}, "echo": True}, ox.ConfigError, "echo must be left out"),
        ({"prompt": "p", "details": ["tokns"]}, ox.ConfigError, r"details\[0\] must be one of"),
        ({"prompt": "p", "details": "tokens"}, ox.ConfigError, "details must be"),
        ({"prompt": "p", "on_error": "skip"}, ox.ConfigError, "on_error must be one of"),
        ({"prompt": "p", "progress": 3}, ox.ConfigError, "progress"),
        ({"prompt": "p", "output": 3}, ox.ConfigError, "output must be the name"),
    ],
)
def test_bad_settings_are_refused_before_a_model_is_loaded(options, error, match):
    with pytest.raises(error, match=match):
        oxd.Generate("/there/is/no/such.gguf", **options)


@pytest.mark.parametrize(
    ("fields", "error"),
    [({"num_treads": 1}, TypeError), ({"num_threads": 0}, ox.ConfigError), ({"model_path": "a"}, ox.ConfigError)],
)
def test_bad_engine_settings(fields, error):
    with pytest.raises(error):
        oxd.Generate(prompt="p", engine=fields)


def test_errors_of_all_rows_are_raised_whatever_becomes_of_rows():
    table = {"p": ["a"]}
    with pytest.raises(ox.ModelNotFoundError):
        oxd.Generate("/there/is/no/such.gguf", prompt="p", on_error="null")(table)
    with pytest.raises(ox.GrammarError):
        generate(prompt="p", regex="(", on_error="null")(table)
    with pytest.raises(ox.ConfigError, match="banned_tokens"):
        generate(prompt="p", banned_tokens=[1 << 30], on_error="null")(table)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_that_lack_or_are_there_already(kind):
    table = made(kind, {"p": ["a"], "q": ["b"]})
    with pytest.raises(ox.ConfigError, match="the batch has no column 'r'; it has 'p', 'q'"):
        generate(prompt="r", **SAME)(table)
    with pytest.raises(ox.ConfigError, match="has a column 'q' already: give another output="):
        generate(prompt="p", output="q", **SAME)(table)


@pytest.mark.parametrize(
    "batch", [[{"q": "a"}], [{"p": "a"}, 3], "text", None, {"p": "text"}, {"p": ["a"], "q": []}, {"p": {"a": 1}}]
)
def test_what_is_no_table(batch):
    with pytest.raises(ox.ConfigError, match=r"batch must be|column|columns|a list of rows"):
        generate(prompt="p", **SAME)(batch)


# ---- engines and progress


def test_an_engine_may_be_given(engine, alone):
    mapper = oxd.Generate(engine, template=TEXT, **SAME)
    assert mapper.engine is engine
    assert pickle.loads(pickle.dumps(mapper)).engine is engine
    assert mapper({"animal": ANIMALS})["answer"] == alone
    mapper.close()
    assert not engine.closed
    with pytest.raises(ox.ConfigError, match="engine must be left out"):
        oxd.Generate(engine, prompt="p", engine={"num_threads": 1})
    with pytest.raises(ox.ConfigError, match="bytes"):
        oxd.Generate(b"GGUF", prompt="p")


def test_mappers_of_the_same_settings_share_an_engine_that_opens_again(alone):
    one, other = generate(template=TEXT, **SAME), generate(prompt="animal", **SAME)
    assert one.engine is other.engine is pickle.loads(pickle.dumps(one)).engine
    assert oxd.Generate(prompt="animal", engine={"num_threads": 1, "context_size": 64}).engine is not one.engine
    one.close()
    assert other.source._engine.closed
    assert other({"animal": [None]})["answer"] == [None]
    assert one({"animal": ANIMALS})["answer"] == alone


def test_progress_counts_every_row():
    told = []
    generate(template=TEXT, progress=lambda *n: told.append(n), **SAME)({"animal": ANIMALS})
    assert told == [(i, 6) for i in range(1, 7)]
    told.clear()
    list(generate(template=TEXT, progress=lambda *n: told.append(n), **SAME).map([{"animal": ["a", None]}]))
    assert told == [(1, None), (2, None)]


def test_a_bar_shows_rows_and_tokens(capsys):
    generate(template=TEXT, progress=True, **SAME)({"animal": ANIMALS})
    shown = capsys.readouterr().err
    assert "6/6" in shown
    assert "tokens/s" in shown


def test_schemas_of_what_comes_back():
    pa = pytest.importorskip("pyarrow")
    mapper = generate(prompt="p", details=True, on_error="column", **SAME)
    table = pa.table({"p": ["a", None]})
    assert mapper.schema(table) == mapper.schema(table.schema) == mapper(table).schema
    with pytest.raises(ox.ConfigError, match="schema\\(\\) takes"):
        mapper.schema({"p": str})


def test_lazy_frames_stay_lazy(alone):
    pl = pytest.importorskip("polars")
    mapper = generate(template=TEXT, details=True, **SAME)
    frame = pl.LazyFrame({"animal": ANIMALS})
    lazy = frame.map_batches(mapper, schema=mapper.schema(frame))
    assert lazy.collect_schema() == mapper.schema(frame)
    assert lazy.collect()["answer"].to_list() == alone
    assert mapper(frame).select("answer").collect()["answer"].to_list() == alone
