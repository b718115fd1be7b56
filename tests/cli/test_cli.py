"""The command line: what goes to which stream, and the exit status."""

import contextlib
import importlib
import json
import signal

import numpy as np
import pytest

import oxillama as ox
from oxillama.cli.bench import measure
from oxillama.core.loading import shipped_model
from tests.models.bert import BERT, DOCUMENTS, HEADS, QUERY, changed, with_head

ONE_THREAD = ["-t", "1"]


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1) as engine:
        yield engine


def test_a_deadline_that_cuts_a_text_is_said(run):
    status, out, err = run("run", "The", "--deadline", 1e-6, *ONE_THREAD)
    assert (status, out.strip()) == (124, "")
    assert err.splitlines()[-1] == "[the text is not whole: its deadline of 1e-06 s passed]"
    assert run("run", "The", "-n", 3, "--deadline", 1000, *ONE_THREAD)[0] == 0
    status, _, err = run("chat", "--deadline", 1e-6, *ONE_THREAD, stdin="hi\nyou\n")
    assert err.splitlines() == ["[the text is not whole: its deadline of 1e-06 s passed]"] * 2
    assert run("run", "The", "--deadline", 0)[2].startswith("oxillama: error: --deadline must be a finite number above")


def test_run_streams_text_and_tells_the_speed(run, engine):
    status, out, err = run("run", "Once upon a time", "-n", 20, "--seed", 5, *ONE_THREAD)
    assert status == 0
    assert out == engine.generate("Once upon a time", max_tokens=20, seed=5).text + "\n"
    assert "20 generated" in err
    assert "tokens/s" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("draft", [ox.shipped_draft(), "lookup", "grammar"])
def test_guessing_ahead_changes_no_text(run, draft):
    plain, guessed = [], ["--draft", draft, "--num-speculative", 3]
    said = [run("run", "The cat", "-n", 30, "--seed", 1, *ONE_THREAD, *flags) for flags in (plain, guessed)]
    assert [status for status, _, _ in said] == [0, 0]
    assert said[0][1] == said[1][1]
    said = [run("chat", "-n", 20, "--seed", 1, *ONE_THREAD, *flags, stdin="hi\nand\n") for flags in (plain, guessed)]
    assert said[0] == said[1]
    assert said[0][0] == 0


def test_run_reads_standard_input(run, engine):
    expected = engine.generate("The cat", max_tokens=6, temperature=0).text + "\n"
    for prompt in ((), ("-",)):
        _, out, _ = run("run", *prompt, "-n", 6, "--temperature", 0, *ONE_THREAD, stdin="The cat")
        assert out == expected


def test_run_echoes_on_request(run):
    assert run("run", "The cat", "--echo", "-n", 3, *ONE_THREAD)[1].startswith("The cat")


def test_run_options_reach_the_engine(run, engine):
    options = {"top_k": 5, "top_p": 0.5, "min_p": 0.1, "repetition_penalty": 1.5, "repetition_penalty_window": 9}
    options |= {
        "typical_p": 0.9,
        "xtc_probability": 0.5,
        "dry_multiplier": 0.5,
        "dynatemp_range": 0.3,
        "top_n_sigma": 2,
    }
    flags = [str(x) for k, v in options.items() for x in (f"--{k.replace('_', '-')}", v)]
    args = ["run", "The cat", "-n", "30", "--seed", "3", "--ignore-eos", "--stop", "th", "--stop", "zz"]
    _, out, _ = run(*args, *flags, *ONE_THREAD, "-c", 64, "--kv-type", "f32", "--chunk-size", 2, "--no-repack")
    with ox.load(num_threads=1, kv_type="f32") as other:
        r = other.generate("The cat", max_tokens=30, seed=3, ignore_eos=True, stop=["th", "zz"], **options)
    assert out == r.text + "\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run", "x", "-m", "no.gguf"], "no.gguf"),
        (["run", "x", "--top-p", "3"], "--top-p must be a number from 0 to 1, not 3"),
        (["run", "x", "--seed", "-1"], "--seed must"),
        (["run", "x", "--mirostat", "3"], "--mirostat must"),
        (["run", "x", "-n", "0"], "--max-tokens must"),
        (["run", "x", "-t", "0"], "--threads must"),
        (["run", "x", "--temperature", "hot"], "invalid float value: 'hot'"),
        (["run", "x", "-c", "1000000"], "--context-size must"),
        (["run", "x", "-c", "4096"], "pass --override llama.context_length=4096"),
        (["run", "x", "--chunk-size", "0"], "--chunk-size must"),
        (["run", "x", "--stop", ""], "--stop must"),
        (["run", ""], "PROMPT is empty"),
        (["run"], "PROMPT is empty"),
        (["diffuse", ""], "PROMPT is empty"),
        (["diffuse", "x"], "architecture llama does not denoise texts"),
        (["diffuse", "x", "--block-length", "0"], "--block-length must be from 1 to 128"),
        (["diffuse", "x", "--order-temperature", "-1"], "--order-temperature must be"),
        (["embed", "a", ""], "TEXT is empty"),
        (["embed"], "TEXT is empty"),
        (["embed", "a", "--dimensions", "0"], "--dimensions must be from 1 to"),
        (["embed", "a", "--dtype", "int4"], "--dtype must be one of"),
        (["rerank", "a"], "TEXT is empty"),
        (["rerank", "a", "b", ""], "TEXT is empty"),
        (["rerank", "a", "b"], "the model has no classifier"),
        (["run", "x", "-m", ""], "--model is empty"),
        (["tokenize", "x", "-m", ""], "--model is empty"),
        (["info", ""], "FILE is empty"),
        (["run", "x", "--frobnicate"], "unrecognized arguments: --frobnicate; see `oxillama run --help`"),
        (["run", "x", "y"], "unrecognized arguments: y; a text of several words is one argument, in quotes; see"),
        (["run", "--temprature", "1", "x"], "unrecognized arguments: --temprature x; did you mean --temperature?"),
        (["run", "--n-predict=3", "x"], "unrecognized arguments: --n-predict=3; did you mean --max-tokens?"),
        (["chat", "x"], "unrecognized arguments: x; see `oxillama chat --help`"),
        (["--frobnicate", "run", "x"], "unrecognized arguments: --frobnicate"),
        (["run", "x", "--kv-type", "q1"], "--kv-type must"),
        (["run", "x", "--draft", "no.gguf"], "no.gguf: there is no such file"),
        (["run", "x", "--draft", ""], "--draft is empty"),
        (["run", "x", "--draft", "lookup", "--num-speculative", "99"], "--num-speculative must be from 0 to 32"),
        (["run", "x", "--num-speculative", "3"], "--num-speculative is 3, but there is no draft"),
        (["run", "x", "--rope", "factor"], "--rope must be KEY=VALUE, not 'factor'"),
        (["run", "x", "--rope", "factor=0"], "--rope factor must be a number from 0.001 to 1e+06, not 0"),
        (["run", "x", "--rope", "speed=4"], "--rope must have fields among scaling, factor"),
        (["run", "x", "--override", "abc"], "--override must be KEY=VALUE, not 'abc'"),
        (["run", "x", "--override", "llama.block_count=none"], "llama.block_count"),
        (["run", "word " * 2000], "--context-size is 1024"),
        (["frobnicate"], "invalid choice: 'frobnicate'"),
        (["info", "no.gguf"], "no.gguf"),
        (["info", "-c", "0"], "--context-size must"),
        (["tokenize", "x", "-m", "no.gguf"], "no.gguf"),
        (["embed", "x", "--pooling", "sum"], "--pooling must be one of"),
        (["bench", "-p", "0"], "--prompt-tokens must"),
        (["bench", "-n", "1"], "--gen-tokens must"),
        (["bench", "-r", "0"], "--repetitions must"),
        (["bench", "-p", "1024"], "--prompt-tokens must be from 1 to 1023, one less than --context-size, not 1024"),
        (["bench", "-n", "2000"], "--gen-tokens must be from 2 to 1023"),
        (["bench", "-c", "64", "-n", "64"], "--gen-tokens must be from 2 to 63"),
        (["bench", "-c", "2"], "--gen-tokens needs a --context-size of at least 3"),
        (["chat", "--min-p", "9"], "--min-p must"),
    ],
)
def test_errors_are_one_line_and_status_2(run, args, message):
    status, out, err = run(*args)
    assert status == 2
    assert out.strip() == ""
    lines = [line for line in err.splitlines() if not line.startswith("[")]
    assert len(lines) == 1
    assert lines[0].startswith("oxillama: error: ")
    assert message in lines[0]


@pytest.mark.parametrize("args", [["--debug", "run", "x", "-m", "no.gguf"], ["run", "--debug", "x", "-m", "no.gguf"]])
def test_debug_shows_the_traceback(run, args):
    status, _, err = run(*args)
    assert status == 2
    assert "Traceback" in err
    assert "ModelNotFoundError" in err


@pytest.mark.parametrize("error", [MemoryError(), MemoryError("Unable to allocate 9 EiB")])
def test_no_memory_is_one_line(run, monkeypatch, error):
    def load(*given):
        raise error

    monkeypatch.setattr("oxillama.core.loading.load_parts", load)
    status, _, err = run("run", "x")
    assert status == 2
    assert err.startswith("oxillama: error: out of memory")
    assert str(error) in err
    assert len(err.splitlines()) == 1


def test_files_keep_their_names_in_messages(run):
    assert "top_p/context_size.gguf" in run("run", "x", "-m", "top_p/context_size.gguf")[2]
    assert "context_size.gguf" in run("run", "x", "-m", "context_size.gguf")[2]


@pytest.mark.parametrize("place", ["oxillama.cli.arguments.make_parser", "oxillama.core.loading.load_parts"])
def test_ctrl_c_is_not_lost_when_an_import_swallows_it(run, monkeypatch, place):
    module, _, name = place.rpartition(".")
    original = getattr(importlib.import_module(module), name)

    def swallowing(*args, **fields):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return original(*args, **fields)

    monkeypatch.setattr(place, swallowing)
    status, out, err = run("run", "The cat", "-n", 3, *ONE_THREAD)
    assert (status, out, err) == (130, "", "\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_no_command_prints_the_help(run):
    status, out, err = run()
    assert (status, err) == (1, "")  # as of git
    assert out == run("--help")[1]
    assert run("--debug")[:2] == (1, out)
    assert run("--nope")[0] == 2


def test_version_and_help(run):
    assert run("--version")[:2] == (0, f"oxillama {ox.__version__}\n")
    for command in (
        (),
        ("run",),
        ("chat",),
        ("diffuse",),
        ("info",),
        ("tokenize",),
        ("embed",),
        ("rerank",),
        ("bench",),
        ("show-config",),
        ("doctor",),
    ):
        status, out, _ = run(*command, "--help")
        assert status == 0
        assert out.startswith("usage: oxillama")


def test_info(run):
    status, out, _ = run("info")
    assert status == 0
    for word in ("llama", "Q8_0", "1,536", "chat template", "memory"):
        assert word in out
    assert run("info", shipped_model())[1] == out
    assert run("info", "-m", shipped_model())[1] == out
    assert "FILE and --model are both given" in run("info", "-m", "a.gguf", "b.gguf")[2]


def test_tokenize(run, engine):
    text = "A café."
    assert json.loads(run("tokenize", text)[1]) == engine.tokenize(text)
    assert json.loads(run("tokenize", "--no-special", "-", stdin=text)[1]) == engine.tokenize(text, add_special=False)
    special = engine.tokenizer.id_to_token(engine.tokenizer.eos_id)
    ids = json.loads(run("tokenize", "--parse-special", "--no-special", special)[1])
    assert ids == [engine.tokenizer.eos_id]
    lines = run("tokenize", "--pieces", "--no-special", "hello")[1].splitlines()
    assert "".join(eval(line.split("\t")[1]) for line in lines) == "hello"


def test_embed(run, engine):
    one = json.loads(run("embed", "a cat", *ONE_THREAD)[1])
    assert np.array_equal(np.array(one, np.float32), engine.embed("a cat"))
    two = json.loads(run("embed", "a", "b", "--pooling", "last", "--no-normalize", *ONE_THREAD)[1])
    assert np.array_equal(np.array(two, np.float32), engine.embed(["a", "b"], pooling="last", normalize=False))
    assert np.shape(json.loads(run("embed", "--pooling", "none", *ONE_THREAD, stdin="a cat")[1]))[0] > 1


def test_embed_in_few_bits(run, engine):
    small = json.loads(run("embed", "a cat", "--dimensions", 9, "--dtype", "int8", *ONE_THREAD)[1])
    assert small == engine.embed("a cat", dimensions=9, dtype="int8").tolist()


def test_rerank(run, tmp_path):
    path = changed(with_head(tmp_path, head=HEADS["output"]), BERT)
    found = ox.load(path, num_threads=1).rerank(QUERY, DOCUMENTS)
    expected = [{"index": d.index, "score": d.score, "text": DOCUMENTS[d.index]} for d in found]
    arguments = ["rerank", "-m", path, *ONE_THREAD, QUERY]
    assert [json.loads(line) for line in run(*arguments, *DOCUMENTS)[1].splitlines()] == expected
    lines = "\n".join(DOCUMENTS) + "\n\n"
    for given in ([], ["-"]):
        _, out, _ = run(*arguments, *given, "--top-n", 2, stdin=lines)
        assert [json.loads(line) for line in out.splitlines()] == expected[:2]


def test_bench(run):
    status, out, _ = run("bench", "-p", 16, "-n", 4, "-r", 2, "--json", *ONE_THREAD)
    assert status == 0
    result = json.loads(out)
    assert result["threads"] == 1
    for part, n in (("prefill", 16), ("decode", 4)):
        assert result[part]["tokens"] == n
        assert len(result[part]["runs"]) == 2
        assert min(result[part]["runs"]) <= result[part]["tokens_per_second"] <= max(result[part]["runs"])
    assert "tokens/s" in run("bench", "-p", 4, "-n", 2, "-r", 1, *ONE_THREAD)[1]


def test_bench_takes_nothing_from_the_prefix_cache(engine):
    before = engine.metrics_snapshot()
    for _ in range(2):
        measure(engine, 64, 2)
    after = engine.metrics_snapshot()
    assert after.prefill_tokens - before.prefill_tokens == 2 * (64 + 1)
    assert after.prefix_hits == before.prefix_hits


def test_bench_of_a_model_with_a_small_context(run):
    result = json.loads(run("bench", "-c", 24, "-r", 1, "--json", *ONE_THREAD)[1])
    assert (result["prefill"]["tokens"], result["decode"]["tokens"]) == (23, 23)


def test_show_config(run):
    status, out, _ = run("show-config")
    assert status == 0
    assert "tier_in_use" in out


# ---- what the text may be


def test_run_holds_the_text_to_what_is_asked(run, tmp_path):
    (tmp_path / "s.json").write_text('{"type": "null"}')
    (tmp_path / "g.gbnf").write_text('root ::= "é" | "à"', "utf-8")
    for flags, texts in (
        (["--choices", "yes", "--choices", "no"], {"yes", "no"}),
        (["--regex", "(a|b)"], {"a", "b"}),
        (["--grammar", 'root ::= "x" | "y"'], {"x", "y"}),
        (["--json-schema", '{"enum": ["x", "y"]}'], {'"x"', '"y"'}),
        (["--json-schema-file", tmp_path / "s.json"], {"null"}),
        (["--json-schema", '{"const": 1}'], {"1"}),
        (["--json-schema", '{"const": 1e16}', "--schema-mode", "generate"], {"1e+16"}),
        (["--grammar-file", tmp_path / "g.gbnf"], {"é", "à"}),
    ):
        status, out, _ = run("run", "Once", *flags, *ONE_THREAD)
        assert status == 0
        assert out.strip() in texts


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--grammar", "root ::= ("], "line 1, column 10"),
        (["--regex", "("], "column 1"),
        (["--json-schema", "{"], "--json-schema must be a schema as a dict, a bool or JSON text"),
        (["--json-schema", '{"$ref": "https://example.org/remote"}'], "remote"),
        (["--json-schema", "{}", "--schema-mode", "wide"], "argument --schema-mode: invalid choice: 'wide'"),
        (["--regex", "a", "--choices", "b"], "argument --choices: not allowed with argument --regex"),
        (["--grammar", "a", "--grammar-file", "b"], "not allowed with argument --grammar"),
        (["--grammar-file", "/no/such/file"], "/no/such/file"),
        (["--grammar-file", ""], "--grammar-file is empty"),
    ],
)
def test_bad_constraints_are_one_line(run, flags, message):
    status, out, err = run("run", "Once", *flags, *ONE_THREAD)
    assert (status, out.strip()) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_grammar_file_that_is_no_text(run, tmp_path):
    (tmp_path / "g").write_bytes(b"root ::= \xff")
    status, _, err = run("run", "Once", "--grammar-file", tmp_path / "g", *ONE_THREAD)
    assert status == 2
    assert "is not UTF-8 at byte 9" in err
