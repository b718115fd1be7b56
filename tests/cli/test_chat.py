"""`oxillama chat`: lines that are typed and piped, Ctrl-C, and contexts that are full."""

import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path

import pytest

import oxillama as ox
from tests.models.references import path_of

ONE_THREAD = ["-t", "1"]
CAT = "Tell me a story about a cat."


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1) as engine:
        yield engine


def say(*contents):
    """A conversation of these contents, the user's first."""
    return [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]


def test_chat_answers_each_line_and_remembers(run, engine):
    messages, expected = [], ""
    for line in ("What is 2 + 3?", "Tell me a story about a cat."):
        messages.append({"role": "user", "content": line})
        answer = engine.chat(messages, max_tokens=30, seed=1).text
        messages.append({"role": "assistant", "content": answer})
        expected += answer + "\n"
    lines = "What is 2 + 3?\n\nTell me a story about a cat.\n"
    status, out, err = run("chat", "-n", 30, "--seed", 1, *ONE_THREAD, stdin=lines)
    assert (status, out, err) == (0, expected, "")


def test_chat_computes_only_what_is_new(run, monkeypatch):
    from oxillama.core.runner import Runner

    computed = []
    forward = Runner.forward

    def counting(self, spans, poll=None):
        computed.append([len(s.tokens) for s in spans])
        return forward(self, spans, poll)

    monkeypatch.setattr(Runner, "forward", counting)
    run("chat", "-n", 20, "--seed", 1, "--system", "Be kind.", *ONE_THREAD, stdin="What is 2 + 3?\nWhat is 4 + 4?\n")
    prompts = [spans[0] for spans in computed if spans[0] > 1]
    assert len(prompts) == 2
    # The second turn is the end of the first answer, a question and markers: shorter than the first with its system
    # message, although it comes after it.
    assert prompts[1] < prompts[0]


def test_chat_reset_and_exit(run, engine):
    answer = engine.chat([{"role": "user", "content": "Hello!"}], max_tokens=20, seed=1).text
    lines = "Hello!\n/reset\nHello!\n/exit\nHello!\n"
    assert run("chat", "-n", 20, "--seed", 1, *ONE_THREAD, stdin=lines)[1] == f"{answer}\n{answer}\n"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_piped_lines_are_utf_8(run, engine, encoding):
    lines = io.TextIOWrapper(io.BytesIO("Hello!\ncaf\xe9\n".encode() + b"caf\xe9\nHello!\n"), encoding)
    first = engine.chat(say("Hello!"), max_tokens=5, seed=1).text
    second = engine.chat(say("Hello!", first, "caf\xe9"), max_tokens=5, seed=1).text
    third = engine.chat(say("Hello!", first, "caf\xe9", second, "Hello!"), max_tokens=5, seed=1).text
    assert run("chat", "-n", 5, "--seed", 1, *ONE_THREAD, stdin=lines) == (
        1, f"{first}\n{second}\n{third}\n",
        "oxillama: error: line 3 of standard input is not UTF-8 (the message is left out)\n",
    )  # fmt: skip


def test_chat_holds_answers_to_what_is_asked(run):
    _, out, _ = run("chat", "--choices", "yes", "--choices", "no", *ONE_THREAD, stdin="Hello\nHello\n")
    assert {line.removeprefix("> ") for line in out.split()} <= {"yes", "no"}


def test_help_and_unknown_commands(run, engine):
    status, out, err = run("chat", "-n", 5, "--seed", 1, *ONE_THREAD, stdin="/help\n/nothing\nHello!\n")
    assert (status, out) == (1, engine.chat(say("Hello!"), max_tokens=5, seed=1).text + "\n")
    for word in ("/help", "/reset", "/exit", "/quit", "Ctrl-C", "Ctrl-D"):
        assert word in err
    assert err.splitlines()[-1] == "/nothing is no command: /help lists them"


@pytest.mark.parametrize("line", ["/etc/passwd", "/no_think", "/reset the counter", "/ ?", "/Help"])
def test_other_lines_with_a_slash_are_messages(run, engine, line):
    found = run("chat", "-n", 5, "--seed", 1, *ONE_THREAD, stdin=f"{line}\n")
    assert found == (0, engine.chat(say(line), max_tokens=5, seed=1).text + "\n", "")


def test_chat_template_of_a_file(run, engine, tmp_path):
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    (tmp_path / "t.jinja").write_text(template)
    expected = engine.chat(say("Hello!"), max_tokens=9, seed=1, chat_template=template).text
    given = ["chat", "-n", 9, "--seed", 1, *ONE_THREAD]
    assert run(*given, "--chat-template", tmp_path / "t.jinja", stdin="Hello!\n") == (0, f"{expected}\n", "")
    (tmp_path / "t.jinja").write_text("{% broken")
    for file, message in (
        (tmp_path / "t.jinja", "the chat template does not compile"),
        (tmp_path / "none", f"--chat-template {tmp_path}/none can't be read: No such file or directory"),
        ("", "--chat-template is empty: give a file"),
    ):
        status, out, err = run(*given, "--chat-template", file, stdin="Hello!\n")
        assert (status, out, len(err.splitlines())) == (2, "", 1)
        assert err.startswith(f"oxillama: error: {message}")


def test_model_without_a_template_is_refused_before_the_first_message(run, tmp_path):
    with ox.gguf.open(path_of("llama")) as file:
        kept = {key: value for key, value in file.metadata.items() if "chat_template" not in key}
        ox.gguf.write_gguf(tmp_path / "m.gguf", kept, file.tensors)
    status, out, err = run("chat", "-m", tmp_path / "m.gguf", *ONE_THREAD)
    assert (status, out) == (2, "")
    assert err.startswith("oxillama: error: the model has no chat template 'default'")


# ---- variables and tools of the template

THINKS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]{{ mood }}"
    "{% if enable_thinking is defined and not enable_thinking %}</think>{% endif %}"
)


def test_variables_of_the_template(run, engine, tmp_path):
    (tmp_path / "t.jinja").write_text(THINKS)
    given = ["chat", "-n", 9, "--seed", 1, *ONE_THREAD, "--chat-template", tmp_path / "t.jinja"]
    for flags, kwargs in [
        (["--think"], {"enable_thinking": True}),
        (["--no-think"], {"enable_thinking": False}),
        (["--template-kwarg", "enable_thinking=false"], {"enable_thinking": False}),
        (["--no-think", "--template-kwarg", "mood=kind"], {"enable_thinking": False, "mood": "kind"}),
        (["--template-kwarg", "mood=[1, 2]"], {"mood": [1, 2]}),
    ]:
        options = {"chat_template": THINKS, "template_kwargs": kwargs, "max_tokens": 9, "seed": 1}
        assert run(*given, *flags, stdin="Hello!\n") == (0, engine.chat(say("Hello!"), **options).text + "\n", "")


@pytest.mark.parametrize(("flags", "why"), [
    (["--think"], "the chat template has no variable that lets the model think or not; it reads none"),
    (["--no-think"], "the chat template has no variable that lets the model think or not; it reads none"),
    (["--template-kwarg", "mood"], "--template-kwarg must be KEY=VALUE, not 'mood'"),
    (["--tools", "none.json"], "--tools none.json can't be read: No such file or directory"),
    (["--tool-format", "hermse", "--tools", "none.json"], "--tool-format must be one of hermes, "),
    (["--tool-format", "hermes"], "give --tools too"),
    (["--think", "--no-think"], "argument --no-think: not allowed with argument --think"),
])  # fmt: skip
def test_bad_flags(run, flags, why):
    status, out, err = run("chat", *ONE_THREAD, *flags, stdin="Hello!\n")
    assert (status, out) == (2, "")
    assert why in err


@pytest.mark.parametrize(("flag", "value"), [("--think", "false"), ("--no-think", "true")])
def test_thinking_that_is_wanted_and_not(run, tmp_path, flag, value):
    (tmp_path / "t.jinja").write_text(THINKS)
    given = ["chat", *ONE_THREAD, "--chat-template", tmp_path / "t.jinja", flag]
    status, out, err = run(*given, "--template-kwarg", f"enable_thinking={value}", stdin="Hello!\n")
    assert (status, out) == (2, "")
    assert f"{flag} is given, and --template-kwarg enable_thinking=" in err


def test_a_variable_that_the_template_does_not_read(run):
    status, out, err = run("chat", *ONE_THREAD, "--template-kwarg", "mood=kind", stdin="Hello!\n")
    assert (status, out) == (1, "")
    assert err.startswith("oxillama: error: the chat template reads no variable 'mood'; it reads none")


HERMES = (
    "{% for t in tools %}<tools>{{ t | tojson }}</tools>{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    '{% for c in m.tool_calls or [] %}<tool_call>{"name": "{{ c.function.name }}", '
    '"arguments": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{% endfor %}[assistant]'
)
LOOK = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}


def test_what_calls_returned_is_typed(run, engine, tmp_path):
    (tmp_path / "t.jinja").write_text(HERMES)
    (tmp_path / "tools.json").write_text(json.dumps([{"type": "function", "function": LOOK}]))
    calls = [f'<tool_call>\n{{"name": "look", "arguments": {{"at": "{at}"}}}}\n</tool_call>' for at in "ab"]
    grammar = "root ::= " + json.dumps("Well.\n" + "\n".join(calls))
    given = ["chat", "--seed", 1, *ONE_THREAD, "--chat-template", tmp_path / "t.jinja", "--grammar", grammar]
    seen = []
    ids, kept = (
        ox.Engine.chat_tokens,
        lambda self, messages, **options: seen.append(messages) or ids(self, messages, **options),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ox.Engine, "chat_tokens", kept)
        status, out, err = run(*given, "--tools", tmp_path / "tools.json", stdin="Look!\none\ntwo\n/reset\nAgain!\n")
    assert (status, out) == (0, "Well.\n\n" * 3)
    notes = [f'[call: look({{"at": "{at}"}}); type what it returns]' for at in "ab"]
    assert err.splitlines() == [*notes, notes[0], notes[0]]
    assert [[m["role"] for m in messages] for messages in seen] == [
        ["user"], ["user", "assistant", "tool", "tool"], ["user"],
    ]  # fmt: skip
    assert [m["content"] for m in seen[1]] == ["Look!", "Well.\n", "one", "two"]
    assert [m["tool_call_id"] for m in seen[1][2:]] == [call["id"] for call in seen[1][1]["tool_calls"]]


def test_a_call_may_return_nothing(run, tmp_path):
    """Of a format that the template doesn't tell."""
    (tmp_path / "t.jinja").write_text("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
    (tmp_path / "tools.json").write_text(json.dumps([{"type": "function", "function": LOOK}]))
    grammar = "root ::= " + json.dumps('<tool_call>\n{"name": "look", "arguments": {"at": "a"}}\n</tool_call>')
    given = ["chat", "--seed", 1, *ONE_THREAD, "--chat-template", tmp_path / "t.jinja", "--grammar", grammar]
    given += ["--tools", tmp_path / "tools.json"]
    status, out, err = run(*given, "--tool-format", "hermes", stdin="\nLook!\n\n")
    assert (status, out) == (0, "\n\n")
    assert err.splitlines()[-2:] == ['[call: look({"at": "a"}); type what it returns]'] * 2
    status, out, err = run(*given, "--tool-format", "none", stdin="Look!\n")
    assert (status, out) == (2, "")
    assert "give --tool-format, one of hermes, " in err


def test_tools_that_no_grammar_holds_are_named_once(run, tmp_path):
    (tmp_path / "t.jinja").write_text(HERMES)
    names = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    tag = {"name": "tag", "parameters": {"type": "object", "properties": {"names": names}}}
    (tmp_path / "tools.json").write_text(json.dumps([LOOK, tag]))
    given = ["chat", *ONE_THREAD, "--chat-template", tmp_path / "t.jinja", "--max-tokens", 2]
    status, _, err = run(*given, "--tools", tmp_path / "tools.json", stdin="Look!\nAgain!\n")
    assert status == 0
    (said,) = err.splitlines()
    assert said.startswith("[the arguments of the tool 'tag' are held to no schema: uniqueItems at ")


def test_tools_that_the_template_does_not_show(run, tmp_path):
    """They are described, which is said once; calls are JSON, and what they return is shown as text."""
    source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
    (tmp_path / "t.jinja").write_text(source)
    (tmp_path / "tools.json").write_text(json.dumps([{"type": "function", "function": LOOK}]))
    grammar = "root ::= " + json.dumps('<tool_call>\n{"name": "look", "arguments": {"at": "a"}}\n</tool_call>')
    given = ["chat", "--seed", 1, *ONE_THREAD, "--chat-template", tmp_path / "t.jinja", "--grammar", grammar]
    status, out, err = run(*given, "--tools", tmp_path / "tools.json", stdin="Look!\nfar\n")
    assert (status, out) == (0, "\n\n")
    said = "[the chat template shows no tools: they are described in a system message, and calls are JSON]"
    assert err.splitlines() == [said, *['[call: look({"at": "a"}); type what it returns]'] * 2]


def test_files_of_tools_of_another_form(run, tmp_path):
    file = tmp_path / "tools.json"
    for text, why in [("{", "must be a JSON list of functions"), ("[3]", "tools[0]"), ('[{"type": "x"}]', "tools[0]")]:
        file.write_text(text)
        status, out, err = run("chat", *ONE_THREAD, "--tools", file, stdin="Hello!\n")
        assert (status, out) == (2, "")
        assert why in err


# ---- contexts that are full


def test_message_that_is_too_long_is_left_out(run, engine):
    answer = engine.chat(say("Hello!"), max_tokens=20, seed=1).text
    lines = "Hello!\n/reset\n" + "word " * 3000 + "\nHello!\n"
    status, out, err = run("chat", "-n", 20, "--seed", 1, *ONE_THREAD, stdin=lines)
    assert (status, out) == (1, f"{answer}\n{answer}\n")
    assert err.startswith("oxillama: error: the message takes 6,")
    assert "the context holds 1,024, with the answer: shorten it, or give a larger --context-size or --kv-budget" in err
    assert len(err.splitlines()) == 1


def test_oldest_turns_are_forgotten_when_the_context_is_full(run):
    given = ["-n", 60, "--temperature", 0, "-c", 200, "--system", "Be kind."]
    questions = [f"{CAT} Number {i}." for i in range(6)]
    status, out, err = run("chat", *given, *ONE_THREAD, stdin="\n".join(questions))
    assert status == 0
    answers, dropped = out.splitlines(), 0
    assert len(answers) == 6
    system = {"role": "system", "content": "Be kind."}
    with ox.load(num_threads=1, context_size=200) as engine:
        history, expected = [], []
        for question, answer in zip(questions, answers, strict=True):
            history.append(say(question)[0])
            before = len(history)
            while len(engine.chat_tokens([system, *history])) + 50 > 200:
                history = history[2:]
            if before > len(history):
                dropped += 1
                expected.append(
                    f"[the oldest {before - len(history)} messages are forgotten: the context holds 200 tokens]"
                )
            assert engine.chat([system, *history], max_tokens=60, temperature=0).text == answer
            history.append({"role": "assistant", "content": answer})
    assert dropped > 0
    assert err.splitlines() == expected


def test_answer_that_fills_the_context_says_so_and_the_next_one_goes_on(run):
    status, out, err = run("chat", "--ignore-eos", "--seed", 1, "-c", 100, *ONE_THREAD, stdin=f"{CAT}\n{CAT}\n")
    assert status == 1  # answers that are not whole
    assert len(out.splitlines()) == 2
    full = "[the answer ends here: the context holds 100 tokens]"
    assert err.splitlines() == [full, "[the oldest 2 messages are forgotten: the context holds 100 tokens]", full]


def test_cache_that_is_smaller_than_the_context(run):
    lines = f"{CAT}\n{CAT}\n" + "word " * 100 + "\nHello!\n"
    status, out, err = run("chat", "-n", 30, "--seed", 1, "--kv-budget", "80K", *ONE_THREAD, stdin=lines)
    assert status == 1
    assert len(out.splitlines()) == 3
    assert "[the oldest 2 messages are forgotten: the context holds 80 tokens]" in err
    assert "tokens and the context holds 80, with the answer: " in err


# ---- Ctrl-C


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def type_in(run, monkeypatch):
    """type_in(lines, arguments...): what `run` gives for lines at a terminal, of which some may be exceptions."""

    def call(lines, *args):
        left = list(lines)

        def read(prompt=""):
            line = left.pop(0) if left else EOFError
            if isinstance(line, str):
                return line
            raise line

        with monkeypatch.context() as patch:
            patch.setattr("builtins.input", read)
            patch.setattr("oxillama.cli.chat.half_typed", lambda: False)
            found = run("chat", *args, *ONE_THREAD, stdin=Terminal())
        return *found, left

    return call


@pytest.fixture
def interrupted(monkeypatch):
    """interrupted(n): Ctrl-C at the n-th step of the model from here on."""
    from oxillama.core.runner import Runner

    forward = Runner.forward

    def after(n):
        calls = []

        def step(self, spans, poll=None):
            calls.append(1)
            if len(calls) == n:
                signal.raise_signal(signal.SIGINT)
            return forward(self, spans, poll)

        monkeypatch.setattr(Runner, "forward", step)

    return after


def test_terminal_is_greeted(type_in):
    status, out, err, _ = type_in(["Hello!", "/exit", "more"], "-n", 3)
    assert status == 0
    assert len(out.splitlines()) == 1
    greeting = "oxillama default (ships with oxillama, llama, context of 1,024 tokens): /help lists what can be typed."
    assert err.splitlines()[0] == greeting
    assert "(llama.gguf, llama, context of " in type_in([], "-m", path_of("llama"), "--chat-template", "/dev/null")[2]


def test_ctrl_c_stops_an_answer_of_which_counts_what_was_said(type_in, interrupted, engine):
    interrupted(5)
    status, out, err, left = type_in([CAT, "What is 2 + 3?"], "-n", 30, "--temperature", 0)
    first, second = out.splitlines()
    assert (status, left) == (0, [])
    assert "error" not in err
    assert len(engine.tokenize(first, add_special=False)) < 6
    assert engine.chat(say(CAT), max_tokens=30, temperature=0).text.startswith(first)
    assert second == engine.chat(say(CAT, first, "What is 2 + 3?"), max_tokens=30, temperature=0).text


def test_ctrl_c_before_an_answer_begins_takes_the_message_back(type_in, interrupted, engine):
    interrupted(1)
    status, out, err, _ = type_in([CAT, "What is 2 + 3?"], "-n", 30, "--temperature", 0)
    assert status == 0
    assert "[stopped before the answer began: the message is taken back]" in err
    assert out.splitlines()[-1] == engine.chat(say("What is 2 + 3?"), max_tokens=30, temperature=0).text


def test_ctrl_c_ends_piped_lines(run, interrupted):
    interrupted(5)
    status, out, err = run("chat", "-n", 30, "--temperature", 0, *ONE_THREAD, stdin=f"{CAT}\nWhat is 2 + 3?\n")
    assert (status, err) == (130, "\n")
    assert len(out.splitlines()) == 1


def test_ctrl_c_at_the_prompt_gives_a_new_one_and_twice_leaves(type_in):
    again = "(Ctrl-C again, or Ctrl-D, leaves)"
    key = KeyboardInterrupt
    status, out, err, left = type_in([key, "Hello!", key, "/reset", key, key, "more"], "-n", 3)
    assert (status, left) == (0, ["more"])
    assert len(out.splitlines()) == 1
    assert err.count(again) == 3
    assert type_in([EOFError, "more"])[0::3] == (0, ["more"])
    assert type_in([key, EOFError, "more"])[0::3] == (0, ["more"])


def test_failures_at_a_terminal_are_seen_and_no_status(type_in):
    status, out, err, _ = type_in(["word " * 3000, "/nothing", "Hello!"], "-n", 3)
    assert (status, len(out.splitlines())) == (0, 1)
    assert "the message takes" in err
    assert "/nothing is no command" in err


# ---- at a real terminal


class Typist:
    """The command in a terminal of its own."""

    def __init__(self, *args):
        self.master, slave = os.openpty()
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "TERM": "dumb"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "oxillama", *args], stdin=slave, stdout=slave, stderr=slave, env=env,
            start_new_session=True, preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)

    def type(self, text):
        os.write(self.master, text.encode())

    def interrupt(self):
        """Ctrl-C, once the prompt waits for keys: Python's readline shows it shortly before, and a signal that comes in
        between is seen no earlier than the next key."""
        before, deadline = None, time.monotonic() + 60
        while time.monotonic() < deadline:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            now = re.findall(r"^(?:State|(?:non)?voluntary_ctxt_switches):\s*(\S+)", status, re.MULTILINE)
            if now == before and now[0] == "S":  # asleep, and not awake meanwhile
                break
            before = now
            time.sleep(0.05)
        self.type("\x03")

    def read(self, *ends):
        """What is shown until one of these is there, or the process ends."""
        shown, deadline = "", time.monotonic() + 60
        while time.monotonic() < deadline and not any(end in shown for end in ends):
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    shown += os.read(self.master, 4096).decode("utf-8", "replace")
                except OSError:  # the other side is closed
                    break
        return shown.replace("\r", "")

    def close(self):
        with suppress(OSError):
            os.close(self.master)
        self.process.kill()
        self.process.wait()


@pytest.fixture
def typist():
    endless = ["--ignore-eos", "--override", "llama.context_length=1000000", "-c", "1000000"]
    made = Typist("chat", *ONE_THREAD, "--seed", "1", *endless)
    yield made
    made.close()


def test_terminal_session(typist):
    assert "oxillama default" in typist.read("> ")
    typist.type("/help\n")
    assert "/reset" in typist.read("\n> ")
    typist.type("half a line")
    typist.read("half a line")
    typist.interrupt()
    assert "Ctrl-C again" not in typist.read("\n> ")
    typist.type("Tell me a story.\n")
    typist.read(" the ", " was ")
    typist.type("\x03")
    shown = typist.read("\n> ")
    assert "Traceback" not in shown
    typist.interrupt()
    assert "(Ctrl-C again, or Ctrl-D, leaves)" in typist.read("\n> ")
    typist.interrupt()
    assert "Traceback" not in typist.read("never")
    assert typist.process.wait(60) == 0


def test_ctrl_d_leaves_a_terminal(typist):
    typist.read("> ")
    typist.type("\x04")
    assert "Traceback" not in typist.read("never")
    assert typist.process.wait(60) == 0
