"""The page in a real browser: conversations are asked, streamed, stopped, branched, found again and deleted."""

import json
import re

import pytest

from tests.server.client import serving

LAST = "[...document.querySelectorAll('.message.assistant')].at(-1)"
ANSWER = f"{LAST}.view.message"
IDLE = f"document.getElementById('stop').hidden && {LAST}?.querySelector('.facts')?.textContent"


@pytest.fixture(scope="module")
def port(engine):
    with serving({"tiny": engine}) as (_, port):
        yield port


@pytest.fixture
def page(browser, port):
    """The page, which must have met no fault at the end, and have asked its own server alone."""
    browser.open(f"http://localhost:{port}/")
    yield browser
    assert browser.faults() == []
    assert {url.split("/")[2] for url in browser.requests if not url.startswith(("blob:", "data:"))} == {
        f"localhost:{port}"
    }


def ask(page, text, **settings):
    """Asks, and waits for the end of the answer. Gives its text."""
    given = {"temperature": 0, "max_tokens": 12, "min_p": None, **settings}
    page.click("#open-settings")
    for name, value in given.items():
        shown = "" if value is None else str(value)
        page.value(f"document.querySelector('#settings [name={name}]').value = {json.dumps(shown)}; 0")
    page.click("#settings .go")
    page.click("#prompt")
    page.type(text)
    page.key("Enter")
    assert page.wait(IDLE)
    return page.value(f"{ANSWER}.content")


def press(page, label, at=LAST):
    """Presses a button of a message, whose label begins so."""
    found = f"[...{at}.querySelectorAll('button')].find((one) => one.ariaLabel?.startsWith({json.dumps(label)}))"
    page.value(f"{found}.click()")


def are_listed(page, titles):
    """Whether the list comes to have these conversations: it is drawn when they are kept, behind the answer."""
    shown = "[...document.querySelectorAll('#list .entry')].map((one) => one.title)"
    return page.wait(f"JSON.stringify({shown}) === {json.dumps(json.dumps(titles, separators=(',', ':')))}")


def test_an_answer_is_streamed_with_its_numbers(page, engine):
    said = ask(page, "hi")
    alone = engine.chat([{"role": "user", "content": "hi"}], max_tokens=12, temperature=0)
    assert said == alone.text
    facts = page.value(f"{LAST}.querySelector('.facts').textContent")
    numbers = r"tiny · 12 tokens · [\d.]+ tokens/s · \d of 6 prompt tokens cached · cut off at the limit of tokens"
    assert re.fullmatch(numbers, facts)
    assert page.value("document.getElementById('filled-text').textContent") == "18 of 1,024 tokens"
    assert page.value("document.getElementById('status').textContent") == f"Answer: {said}"
    assert page.value("document.title") == "hi"


def test_enter_sends_and_shift_enter_breaks_and_composition_does_neither(page):
    page.click("#prompt")
    page.type("one")
    page.key("Enter", shift=True)
    page.type("two")
    assert page.value("document.getElementById('prompt').value") == "one\ntwo"
    composing = "new KeyboardEvent('keydown', { key: 'Enter', isComposing: true, bubbles: true, cancelable: true })"
    assert page.value(f"document.getElementById('prompt').dispatchEvent({composing})") is True
    assert page.value("document.querySelectorAll('.message').length") == 0
    page.key("Enter")
    assert page.wait("document.querySelector('.message.user .text')?.textContent") == "one\ntwo"
    assert page.value("document.getElementById('prompt').value") == ""
    page.wait(IDLE)


def test_a_stopped_answer_stays_and_goes_on(page):
    long = {"temperature": 1, "max_tokens": 900, "seed": 3}
    stop = "window.stopper = setInterval(() => { if (document.querySelector('.body .block')) { clearInterval(stopper);"
    page.value(f"{stop} document.getElementById('stop').click(); }} }}, 1); 0")
    said = ask(page, "Tell me a long story.", **long)
    assert page.value(f"{ANSWER}.finish") == "stopped"
    assert page.value(f"{LAST}.querySelector('.facts').textContent").endswith(" · stopped")
    press(page, "Go on")
    page.wait(f"{ANSWER}.finish !== 'stopped' && {IDLE}")
    more = page.value(f"{ANSWER}.content")
    assert more.startswith(said)
    assert len(more) > len(said)


def test_branches_are_made_and_chosen(page, engine):
    ask(page, "hi", temperature=1, seed=None)
    page.value("document.activeElement.blur()")
    first = page.value(f"[{ANSWER}.content, {ANSWER}.seed]")
    press(page, "Answer again")
    page.wait(f"{ANSWER}.seed !== {first[1]} && {IDLE}")
    second = page.value(f"{ANSWER}.content")
    assert page.value(f"{LAST}.querySelector('.branch').textContent") == "‹2 / 2›"
    press(page, "Branch before")
    assert page.value(f"{ANSWER}.content") == first[0]
    press(page, "Next branch")
    assert page.value(f"{ANSWER}.content") == second
    user = "document.querySelector('.message.user')"
    press(page, "Edit", user)
    page.value(f"{user}.querySelector('textarea').value = 'hello there'")
    page.value(f"{user}.querySelector('form').requestSubmit()")
    page.wait(f"{user}.querySelector('.text')?.textContent === 'hello there' && {IDLE}")
    assert page.value(f"{user}.querySelector('.branch').textContent") == "‹2 / 2›"
    assert page.value("document.querySelectorAll('.message').length") == 2
    press(page, "Branch before", user)
    assert page.value(f"[{user}.querySelector('.text').textContent, {ANSWER}.content]") == ["hi", second]


def test_a_conversation_is_what_the_model_gets(page, engine):
    asked = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}]
    said = ask(page, "hi", system="Be kind.")
    assert said == engine.chat(asked, max_tokens=12, temperature=0).text
    asked += [{"role": "assistant", "content": said}, {"role": "user", "content": "and a dog?"}]
    assert ask(page, "and a dog?", system="Be kind.") == engine.chat(asked, max_tokens=12, temperature=0).text


def test_conversations_outlive_the_page(page):
    said = ask(page, "hi")
    press(page, "Answer again")
    page.wait(f"{LAST}.querySelector('.branch')?.textContent === '‹2 / 2›' && {IDLE}")
    page.reload()
    assert page.value("[...document.querySelectorAll('.message')].map((one) => one.ariaLabel)") == ["You", "Answer"]
    assert page.value(f"{ANSWER}.content") == said
    assert page.value("document.title") == "hi"
    page.click("#new")
    assert page.wait("document.querySelectorAll('.message').length === 0")
    ask(page, "something else")
    assert are_listed(page, ["something else", "hi"])
    page.value("document.querySelector('#list [title=hi]').click()")
    assert page.wait(f"document.title === 'hi' && {ANSWER}.content") == said


def test_an_answer_that_the_page_left_is_there_as_far_as_it_came(page):
    keep = "import('./page/store.js').then(({ save }) => save("
    chat = {"id": "a", "title": "cut", "created": 1, "updated": 1, "model": "tiny", "settings": {}, "leaf": "a2"}
    messages = [
        {"id": "a1", "chat": "a", "parent": None, "role": "user", "at": 1, "content": "x"},
        {"id": "a2", "chat": "a", "parent": "a1", "role": "assistant", "at": 2, "content": "Once", "calls": [],
         "ids": [1], "tokens": [], "reasoning": "", "finish": None, "model": "tiny", "seed": 1},
    ]  # fmt: skip
    page.value(f"{keep}{json.dumps(chat)}, ...{json.dumps(messages)}))")
    page.value("sessionStorage.setItem('oxillama-open', 'a')")
    page.reload()
    assert page.value(f"[{ANSWER}.content, {ANSWER}.finish]") == ["Once", "stopped"]
    assert page.value("document.getElementById('stop').hidden") is True


def search(page, text):
    box = "document.getElementById('search')"
    page.value(f"{box}.value = {json.dumps(text)}; {box}.dispatchEvent(new Event('input'))")


def test_search_rename_export_and_delete(page):
    ask(page, "the first one")
    page.click("#new")
    ask(page, "a zebra came")
    search(page, "ZEBRA")
    assert page.wait(
        "document.querySelectorAll('#list .entry').length === 1 && document.querySelectorAll('#list small').length"
    )
    assert are_listed(page, ["a zebra came"])
    search(page, "")
    assert page.wait("document.querySelectorAll('#list .entry').length === 2")
    press(page, "Rename a zebra", "document.querySelector('#list')")
    page.type("Animals")
    page.key("Enter")
    assert page.wait("document.title === 'Animals'")
    assert page.wait("document.querySelector('#list [title=Animals]') && 1")
    saved = "import('./page/store.js').then(({ exported }) => exported())"
    read = json.loads(page.value(saved))
    assert [(one["title"], len(one["messages"])) for one in read["conversations"]] == [
        ("Animals", 2), ("the first one", 2)
    ]  # fmt: skip
    press(page, "Delete Animals", "document.querySelector('#list')")
    assert "Animals" in page.value("document.getElementById('sure-text').textContent")
    page.click("#sure button:not(.go)")
    assert are_listed(page, ["Animals", "the first one"])
    press(page, "Delete Animals", "document.querySelector('#list')")
    page.click("#sure .go")
    assert page.wait("document.querySelectorAll('#list .entry').length === 1 && document.title") == "New conversation"
    assert (
        page.value("import('./page/store.js').then(({ listMessages }) => listMessages()).then((all) => all.length)")
        == 2
    )


# Answers no conversation until it is stopped.
WAITING = """
const own = window.fetch;
window.fetch = (path, options) => (path !== "v1/chat/completions" ? own(path, options) : new Promise((_, fail) => {
  options.signal.addEventListener("abort", () => fail(new DOMException("stopped", "AbortError")));
}));
"""


def test_a_conversation_that_is_deleted_while_it_is_answered_stays_away(page):
    page.value(f"(() => {{ {WAITING} }})()")
    page.click("#prompt")
    page.type("Tell me a long story.")
    page.key("Enter")
    assert page.wait("document.querySelectorAll('#list li.runs').length")
    assert page.value(f"{LAST}.querySelector('.waiting') !== null && {LAST}.ariaBusy") == "true"
    press(page, "Delete Tell", "document.querySelector('#list')")
    page.click("#sure .go")
    assert page.wait("document.querySelectorAll('#list .entry').length === 0")
    page.value("new Promise((then) => setTimeout(then, 300))")
    stored = "import('./page/store.js').then(async (s) => [await s.listChats(), await s.listMessages()])"
    assert page.value(stored) == [[], []]
    assert page.value("document.getElementById('stop').hidden") is True


def test_exports_are_files(page, tmp_path):
    said = ask(page, "hi: there?")
    page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.click("#open-settings")
    page.click("#export-text")
    page.click("#export-one")
    page.click("#settings .go")
    page.click("#export-all")
    names = ["conversations.json", "hi there.json", "hi there.md"]
    for _ in range(500):
        if sorted(path.name for path in tmp_path.iterdir()) == names:
            break
        page.value("new Promise((then) => setTimeout(then, 20))")
    assert (tmp_path / "hi there.md").read_text() == f"# hi: there?\n\n## You\n\nhi: there?\n\n## Answer\n\n{said}\n"
    one, every = (json.loads((tmp_path / name).read_text()) for name in ("hi there.json", "conversations.json"))
    assert one == every
    assert [message["content"] for message in one["conversations"][0]["messages"]] in (
        ["hi: there?", said],
        [said, "hi: there?"],
    )


def test_files_of_text_are_attached(page, engine, tmp_path):
    files = {"notes.md": b"A ```fence``` of Jos\xc3\xa9.", "picture.png": b"\x89PNG\0\xff"}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    document = page.call("DOM.getDocument")["root"]["nodeId"]
    box = page.call("DOM.querySelector", nodeId=document, selector="#attach")["nodeId"]
    page.call("DOM.setFileInputFiles", nodeId=box, files=[str(tmp_path / name) for name in files])
    notice = page.wait("document.getElementById('notice').textContent")
    assert notice == "picture.png can't be attached: it is no text."
    said = ask(page, "Sum it up.")
    content = "notes.md:\n````\nA ```fence``` of José.\n````\n\nSum it up."
    assert said == engine.chat([{"role": "user", "content": content}], max_tokens=12, temperature=0).text
    assert page.value("document.querySelector('.message.user summary').textContent") == "notes.md"
    assert page.value("document.getElementById('files').children.length") == 0


def test_errors_are_shown_and_what_was_asked_stays(page):
    ask(page, "word " * 3000)
    said = page.value(f"{LAST}.querySelector('.error').textContent")
    assert said.startswith("This model's maximum context length is 1024 tokens")
    assert page.value("document.querySelectorAll('.message.user').length") == 1


def test_a_server_that_is_gone(browser, engine):
    with serving({"tiny": engine}) as (_, port):
        browser.open(f"http://localhost:{port}/")
    ask(browser, "hi")
    assert browser.value(f"{LAST}.querySelector('.error').textContent").startswith("The server can't be reached")


def test_a_key_is_asked_for_and_kept_for_the_tab_alone(browser, engine):
    with serving({"tiny": engine}, api_key="a-long-secret") as (_, port):
        ready = "addEventListener('DOMContentLoaded', () => { document.body.dataset.ready = 'yes' });"
        browser.open(f"http://localhost:{port}/", before=ready)
        for key in ("wrong", "a-long-secret"):
            assert browser.wait("document.getElementById('keys').open && !document.getElementById('key').value")
            browser.value(f"document.getElementById('key').value = '{key}'; 0")
            browser.click("#keys .go")
        assert browser.wait("document.getElementById('model').value") == "tiny"
        assert ask(browser, "hi")
        assert browser.value("JSON.stringify({ ...localStorage })").count("secret") == 0
        assert browser.faults() == []
