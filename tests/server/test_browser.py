"""The page in a real browser: typing, a streamed answer, numbers, and stopping."""

import re

import pytest

from tests.server.browser import PROGRAM, browsing
from tests.server.client import serving

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no browser here")


@pytest.fixture(scope="module")
def port(engine):
    with serving({"tiny": engine}) as (_, port):
        yield port


def text_of(name):
    return f"document.getElementById('{name}').textContent"


def test_an_answer_is_streamed_and_stopped(port, engine, tmp_path):
    with browsing() as page:
        page.open(f"http://localhost:{port}/")
        assert page.wait("document.readyState == 'complete' && document.getElementById('model').value") == "tiny"
        page.click("prompt")
        page.type("hi")
        page.value("document.getElementById('temperature').value = 0; document.getElementById('tokens').value = 12")
        page.click("go")
        numbers = page.wait(f"{text_of('numbers')}.includes('prompt tokens') && {text_of('numbers')}")
        assert re.fullmatch(r"6 prompt tokens \(\d cached\), 12 tokens, [\d.]+ tokens/s", numbers)
        alone = engine.chat([{"role": "user", "content": "hi"}], max_tokens=12, temperature=0)
        assert page.value(text_of("answer")) == alone.text
        page.value("document.getElementById('temperature').value = 2; document.getElementById('tokens').value = 1000")
        for _ in range(20):  # some answers are over before the click
            page.click("go")
            page.wait(f"{text_of('answer')}.length > 3", 5)
            page.click("stop")
            page.wait("!document.getElementById('go').disabled", 5)
            if "stopped" in page.value(text_of("numbers")):
                break
        assert "stopped" in page.value(text_of("numbers"))
        page.screenshot(tmp_path / "page.png")
        assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


def test_errors_are_shown(port):
    with browsing() as page:
        page.open(f"http://localhost:{port}/")
        page.wait("document.readyState == 'complete' && document.getElementById('model').value")
        page.value("document.getElementById('temperature').value = 2; document.getElementById('tokens').value = 5;"
                   "document.getElementById('prompt').value = 'word '.repeat(3000)")  # fmt: skip
        page.click("go")
        said = page.wait(
            "document.getElementById('numbers').className && document.getElementById('numbers').textContent"
        )
        assert said.startswith("This model's maximum context length is 1024 tokens")
