"""What only this engine shows, in a real browser: probabilities, forks, schemas that hold, and the same bits again."""

import json
import re

import pytest

import oxillama as ox
from tests.server.client import serving

LAST = "[...document.querySelectorAll('.message.assistant')].at(-1)"
ANSWER = f"{LAST}.view.message"
IDLE = f"document.getElementById('stop').hidden && {LAST}?.querySelector('.facts') !== null"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def page(browser, engine):
    with serving({"tiny": engine}) as (_, port):
        browser.open(f"http://localhost:{port}/")
        yield browser
    assert browser.faults() == []


def ask(page, **settings):
    """Asks "hi", and waits for the answer. Gives its text."""
    page.click("#open-settings")
    for name, value in {"temperature": 0, "max_tokens": 16, "min_p": "", **settings}.items():
        field = f"document.querySelector('#settings [name={name}]')"
        page.value(f"{field}.{'checked' if isinstance(value, bool) else 'value'} = {json.dumps(value)}; 0")
    page.click("#settings .go")
    page.click("#prompt")
    page.type("hi")
    page.key("Enter")
    assert page.wait(IDLE)
    return page.value(f"{ANSWER}.content")


def press(page, label):
    found = f"[...{LAST}.querySelectorAll('button')].find((one) => one.ariaLabel?.startsWith({json.dumps(label)}))"
    page.value(f"{found}.click()")


def test_probabilities_are_those_of_the_model(page, engine):
    said = ask(page)
    press(page, "Probabilities")
    tokens = f"[...{LAST}.querySelectorAll('.tokens span')]"
    assert page.value(f"{tokens}.map((one) => one.textContent).join('')") == said
    alone = engine.chat(HI, max_tokens=16, temperature=0, logprobs=5)
    shown = page.value(f"{ANSWER}.tokens.map((one) => [one.id, one.logprob, one.top.map((o) => [o.id, o.logprob])])")
    assert shown == [[t.token_id, t.logprob, [[o.token_id, o.logprob] for o in t.top]] for t in alone.logprobs]
    page.hover(".tokens span:nth-child(3)")
    assert page.wait("!document.getElementById('pop').hidden")
    rows = page.value("[...document.querySelectorAll('#pop button')].map((one) => one.ariaLabel)")
    assert len(rows) == 5
    assert all(re.search(r", [\d.]+%, fork here$", row) for row in rows)
    assert page.value("document.querySelectorAll('#pop button.taken').length") == 1
    page.hover("#title")
    assert page.wait("document.getElementById('pop').hidden")
    press(page, "Probabilities")
    assert page.value(f"{LAST}.querySelector('.tokens')") is None


def fork(page, index, which):
    """Forks at a token: with the one that came ("taken"), or the likeliest other one ("other")."""
    press(page, "Probabilities")
    page.value(f"{LAST}.querySelectorAll('.tokens span')[{index}].click()")
    chosen = f"(one) => one.classList.contains('taken') === {json.dumps(which == 'taken')}"
    page.value(f"[...document.querySelectorAll('#pop button:not(:disabled)')].find({chosen}).click()")
    assert page.wait(f"{LAST}.querySelector('.branch')?.textContent === '‹2 / 2›' && {IDLE}")


def test_a_fork_with_the_same_token_is_the_same_answer(page):
    said = ask(page)
    ids = page.value(f"{ANSWER}.ids")
    fork(page, 4, "taken")
    assert page.value(f"{ANSWER}.content").startswith(said)  # it may have as many tokens more as it begins with
    assert page.value(f"{ANSWER}.ids")[:16] == ids


def test_a_fork_goes_on_behind_the_other_tokens(page, engine):
    ask(page)
    first = page.value(f"({{ ...{ANSWER} }})")
    fork(page, 4, "other")
    made = page.value(f"({{ ...{ANSWER} }})")
    assert made["ids"][:4] == first["ids"][:4]
    assert made["ids"][4] == first["tokens"][4]["top"][1]["id"]
    prompt = engine.chat_tokens(HI) + made["ids"][:5]
    alone = engine.generate(prompt, max_tokens=16, temperature=0)
    assert made["ids"][5:] == alone.token_ids
    assert made["content"] == first["content"][: first["tokens"][4]["place"]] + made["tokens"][4]["text"] + alone.text
    assert len(made["tokens"]) == len(made["ids"])
    page.value(f"{LAST}.querySelector('.branch button').click()")
    assert page.value(f"{ANSWER}.content") == first["content"]


def test_tokens_are_read_by_keys(page):
    ask(page)
    press(page, "Probabilities")
    tokens = f"{LAST}.querySelector('.tokens')"
    assert page.value(f"document.activeElement === {tokens}") is True
    page.key("ArrowRight")
    page.key("ArrowRight")
    active = page.value(f"{tokens}.getAttribute('aria-activedescendant')")
    assert page.value(f"document.getElementById('{active}') === {tokens}.children[1]") is True
    page.key("Enter")
    assert page.value("document.activeElement.closest('#pop') !== null") is True
    page.key("Escape")
    assert page.value(f"[document.getElementById('pop').hidden, document.activeElement === {tokens}]") == [True, True]


@pytest.mark.parametrize("temperature", [0, 1.3])
def test_it_says_the_same_bits_beside_seven_others(page, temperature):
    ask(page, temperature=temperature)
    press(page, "Ask again beside")
    assert page.wait("document.querySelector('.again b')?.textContent").startswith("Same bits. All 16 tokens")
    others = page.value(f"{ANSWER}.again.others.map((one) => one.text)")
    assert len(others) == 7
    assert (len(set(others)) == 1) == (temperature == 0)
    fork(page, 2, "other")
    n = page.value(f"{ANSWER}.ids.length - {ANSWER}.begun")
    press(page, "Ask again beside")
    said = page.wait(f"{LAST}.querySelector('.again b')?.textContent")
    assert said.startswith(f"Same bits. All {n} token")


def test_another_answer_is_said_to_be_another(page):
    ask(page)
    page.value(f"{ANSWER}.ids[3] += 1")
    press(page, "Ask again beside")
    assert page.wait("document.querySelector('.again b')?.textContent") == "Token 4 is another one than before."


def test_one_of_the_seven_others_is_kept(page):
    ask(page, temperature=1.3, seed=7)
    press(page, "Ask again beside")
    page.wait("document.querySelector('.again b') !== null")
    other = page.value(f"{ANSWER}.again.others[2].text")
    page.value(
        "document.querySelector('.again details').open = true; document.querySelectorAll('.again button')[2].click()"
    )
    assert page.value(f"[{ANSWER}.content, {ANSWER}.seed]") == [other, 10]
    press(page, "Ask again beside")
    assert page.wait(f"{LAST}.querySelector('.again b')?.textContent").startswith("Same bits.")


def test_a_schema_holds_the_answer(page, engine):
    schema = {"type": "object", "properties": {"name": {"enum": ["cat", "dog"]}, "n": {"type": "boolean"}},
              "required": ["name", "n"]}  # fmt: skip
    page.click("#schema-on")
    assert json.loads(page.value("document.getElementById('schema').value"))["type"] == "object"
    page.value(f"document.getElementById('schema').value = {json.dumps(json.dumps(schema))};"
               "document.getElementById('schema').dispatchEvent(new Event('change')); 0")  # fmt: skip
    said = ask(page, max_tokens=64)
    assert said == engine.chat(HI, json_schema=schema, max_tokens=64, temperature=0).text
    assert set(json.loads(said)) == {"name", "n"}
    assert page.wait(f"{LAST}.querySelector('.hljs-string')?.textContent") in ('"cat"', '"dog"')
    press(page, "Probabilities")
    page.value(f"{LAST}.querySelector('.tokens span').click()")
    assert page.value("document.querySelectorAll('#pop button:not(:disabled)').length") == 0  # the schema holds it all
    page.value("document.getElementById('schema').value = '{'; 0")
    page.click("#prompt")
    page.type("again")
    page.key("Enter")
    assert "JSON" in page.wait("document.getElementById('schema-fault').textContent")
    assert page.value("document.querySelectorAll('.message').length") == 2
    page.click("#schema-off")
    assert page.value("document.getElementById('schema-box').hidden") is True


def test_a_schema_that_can_not_hold_is_refused_by_the_server(page):
    page.click("#schema-on")
    page.value("document.getElementById('schema').value = '{\"type\": \"nothing\"}';"
               "document.getElementById('schema').dispatchEvent(new Event('change')); 0")  # fmt: skip
    ask(page)
    assert "response_format" in page.value(f"{LAST}.querySelector('.error').textContent")


@pytest.mark.parametrize("settings", [{"max_logprobs": 0}, {}])
def test_answers_without_probabilities(browser, engine, settings):
    with serving({"tiny": engine}, **settings) as (_, port):
        browser.open(f"http://localhost:{port}/")
        given = {} if settings else {"probabilities": False}
        assert ask(browser, **given) == engine.chat(HI, max_tokens=16, temperature=0).text
        labels = browser.value(f"[...{LAST}.querySelectorAll('button')].map((one) => one.ariaLabel)")
        assert not any(label.startswith("Probabilities") for label in labels)
        assert browser.faults() == []


def test_the_model_that_is_picked_answers(browser, engine):
    with ox.load(num_threads=1) as second, serving({"one": engine, "two": second}) as (_, port):
        browser.open(f"http://localhost:{port}/")
        assert browser.value("[...document.getElementById('model').options].map((one) => one.value)") == ["one", "two"]
        assert browser.value("document.getElementById('state').className") == "ready"
        browser.value("document.getElementById('model').value = 'two';"
                      "document.getElementById('model').dispatchEvent(new Event('change')); 0")  # fmt: skip
        ask(browser)
        assert browser.value(f"{LAST}.querySelector('.facts').textContent").startswith("two · ")
        browser.reload()
        assert browser.value("document.getElementById('model').value") == "two"
