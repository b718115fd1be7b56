"""Notebook displays: what is shown is escaped, complete, and in its place."""

import math
import re
import sys
import types
import xml.etree.ElementTree as ET

import pytest

import oxillama as ox
from oxillama._util import notebook
from oxillama._util.notebook import LiveText, html_table, html_text, probability_bars
from oxillama.chat.calls import ToolCall
from oxillama.core.results import Completion, Timings, TokenLogprob

HOSTILE = "<script>alert('x')</script> & \"quoted\"\n<img src=x onerror=y>"
# Tags that are written by these modules themselves.
TAGS = {"table", "tr", "th", "td", "div", "svg", "rect", "title", "hr", "root"}


def parsed(text):
    """The elements of a piece of HTML, which must be well formed."""
    return ET.fromstring(f"<root>{text}</root>")


def cells(text):
    return {row[0].text: "".join(row[1].itertext()) for row in parsed(text).iter("tr")}


def made(**fields):
    return Completion(
        **{"text": HOSTILE, "token_ids": [1, 2, 3], "finish_reason": "stop", "prompt_tokens": 5, **fields}
    )


def test_a_completion_is_a_table():
    found = cells(made(timings=Timings(0.25, 0.2, 0.5), cached_tokens=4)._repr_html_())
    assert found == {
        "text": HOSTILE,
        "ended by": "stop",
        "tokens": "5 (4 cached) + 3",
        "time": "0.250 s to the first token, then 4.0 tokens/s",
    }


@pytest.mark.parametrize("fields", [
    {},
    {"reasoning": HOSTILE},
    {"stop_reason": HOSTILE},
    {"tool_calls": [ToolCall("f", {"a": HOSTILE}, id="1", raw=HOSTILE)]},
    {"logprobs": [TokenLogprob(1, -0.5, HOSTILE.encode()), TokenLogprob(2, -math.inf, b"\xff<")]},
    {"text": "", "token_ids": []},
])  # fmt: skip
def test_whatever_a_model_writes_is_text(fields):
    shown = made(**fields)._repr_html_()
    assert {element.tag for element in parsed(shown).iter()} <= TAGS
    assert {name for element in parsed(shown).iter() for name in element.attrib if name.startswith("on")} == set()
    if fields.get("text") != "":
        assert cells(shown)["text"] == HOSTILE


def test_a_table_has_what_there_is():
    found = cells(
        made(reasoning="so", stop_reason="x", tool_calls=[ToolCall("f", {}, id="1", raw="f()")])._repr_html_()
    )
    assert list(found) == ["text", "reasoning", "calls", "ended by", "tokens", "time"]
    assert (found["reasoning"], found["calls"], found["ended by"]) == ("so", "f()", "stop: 'x'")


def test_bars_are_as_high_as_tokens_are_probable():
    picture = parsed(probability_bars([("a<b", math.log(0.5)), ("c", 0.0), ("d", -math.inf), ("e", math.log(0.25))]))
    bars = list(picture.iter("rect"))
    heights = [float(bar.get("height")) for bar in bars]
    assert heights == [20.0, 40.0, 1.0, 10.0]
    assert all(float(bar.get("y")) + height == 40.0 for bar, height in zip(bars, heights, strict=True))
    lefts = [float(bar.get("x")) for bar in bars]
    assert lefts == sorted(lefts)
    assert len(set(lefts)) == 4
    assert bars[0].find("title").text == "'a<b': -0.693, 50.0%"


def test_a_picture_stays_small():
    shown = probability_bars([("token", -1.0)] * 5000)
    assert shown.count("<rect") == notebook.MOST_BARS
    assert shown.endswith(f" and {5000 - notebook.MOST_BARS} more")
    assert len(shown) < 40_000


def test_names_and_texts_are_escaped():
    assert html_text("<b>") == html_text("<b>").replace("<b>", "")
    assert "&lt;b&gt;" in html_table([("<b>", html_text("x"))])


def test_the_metrics_of_an_engine_are_a_small_table():
    with ox.load(num_threads=2) as engine:
        empty = cells(engine.metrics_snapshot()._repr_html_())
        assert empty["requests"] == "0 running, 0 waiting, 0 ended (none)"
        engine.generate("Once upon a time", max_tokens=5, ignore_eos=True)
        m = engine.metrics_snapshot()
        found = cells(m._repr_html_())
    assert found["requests"] == "0 running, 0 waiting, 1 ended (1 length)"
    assert found["generated tokens"] == "5"
    assert found["prompt tokens"].startswith(f"{m.prompt_tokens}, 0% ")
    assert re.fullmatch(r"[\d,]+ MiB, [\d,]+ of them weights", found["memory"])
    assert len(found) <= 10


class Kernel:
    """IPython as a notebook's kernel has it, which keeps what is displayed."""

    def __init__(self):
        self.shown = []
        display = types.SimpleNamespace(HTML=str, display=self.display)
        self.module = types.SimpleNamespace(get_ipython=lambda: self, display=display)
        self.config = {"IPKernelApp": {}}

    def display(self, value, display_id):
        assert display_id is True
        self.shown.append([value])
        return types.SimpleNamespace(update=self.shown[-1].append)


@pytest.fixture
def kernel(monkeypatch):
    found = Kernel()
    monkeypatch.setitem(sys.modules, "IPython", found.module)
    return found


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=2) as engine:
        yield engine


def test_a_stream_grows_in_one_display(kernel, engine, capsys):
    text = engine.generate("The little fox", max_tokens=12, seed=1).text
    engine.stream("The little fox", max_tokens=12, seed=1).show()
    (versions,) = kernel.shown
    assert "".join(parsed(versions[-1]).itertext()) == text
    assert capsys.readouterr().out == ""


def test_a_notebook_is_not_sent_every_piece(kernel, monkeypatch):
    now = iter(range(10000))
    monkeypatch.setattr(notebook.time, "monotonic", lambda: next(now) * notebook.INTERVAL / 10)
    live = LiveText()
    for _ in range(100):
        live.push((0, "", "a"))
    live.end()
    (versions,) = kernel.shown
    assert len(versions) <= 14
    assert "".join(parsed(versions[-1]).itertext()) == "a" * 100


def test_several_completions_stand_one_below_the_other(kernel):
    live = LiveText()
    for piece in [(1, "", "b<"), (0, "why", "a"), (1, "", "c")]:
        live.push(piece)
    live.end()
    root = parsed(kernel.shown[0][-1])
    assert [element.text for element in root] == ["why", "a", None, "b<c"]


def test_elsewhere_it_is_standard_output(engine, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    text = engine.generate("The little fox", max_tokens=12, seed=1).text
    engine.stream("The little fox", max_tokens=12, seed=1).show()
    assert capsys.readouterr().out == text + "\n"
    both = [r.text for r in engine.generate("The little fox", max_tokens=12, n=2, seed=1)]
    engine.stream("The little fox", max_tokens=12, n=2, seed=1).show()
    assert capsys.readouterr().out == f"{both[0]}\n{both[1]}\n"


def test_reasoning_stands_on_a_line_of_its_own(capsys):
    live = LiveText()
    for piece in [(0, "so ", ""), (0, "it is", ""), (0, "", "An"), (0, "", "swer")]:
        live.push(piece)
    live.end()
    assert capsys.readouterr().out == "so it is\nAnswer\n"


def test_no_completion_is_written_twice(capsys):
    live = LiveText()
    for piece in [(1, "", "b"), (0, "", "a"), (1, "", "c"), (2, "", "d")]:
        live.push(piece)
    live.end()
    assert capsys.readouterr().out == "bc\na\nd\n"


def test_a_shell_without_a_notebook_is_no_notebook(kernel, capsys):
    kernel.config = {}
    live = LiveText()
    live.push((0, "", "text"))
    live.end()
    assert kernel.shown == []
    assert capsys.readouterr().out == "text\n"


def test_what_came_before_an_error_stays_shown(kernel):
    class Broken(ox.core.text_stream.Chunks):
        def __init__(self):
            self.left = [ox.Chunk("so far")]

        def send(self, value):
            if self.left:
                return self.left.pop()
            raise ox.GenerateError("no more")

        def close(self):
            pass

    with pytest.raises(ox.GenerateError):
        Broken().show()
    assert "so far" in kernel.shown[0][-1]


def test_coroutines_show_streams_too(kernel):
    import asyncio

    async def main():
        async with await ox.AsyncEngine.load() as engine:
            await engine.stream("The little fox", max_tokens=12, seed=1).show()
            return (await engine.generate("The little fox", max_tokens=12, seed=1)).text

    text = asyncio.run(main())
    assert "".join(parsed(kernel.shown[0][-1]).itertext()) == text


def test_a_batch_has_a_widget_where_there_is_one(engine, monkeypatch):
    made = []

    class Bar:
        def __init__(self, **options):
            made.append(options)

        def update(self, n):
            made.append(n)

        def close(self):
            made.append("closed")

    import tqdm.auto

    monkeypatch.setattr(tqdm.auto, "tqdm", Bar)
    list(engine.batch(["A", "B"], max_tokens=2, progress=True))
    assert made == [{"total": 2, "unit": "prompt"}, 1, 1, "closed"]
