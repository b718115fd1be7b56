"""What a model writes, in a real browser: Markdown, hostile or not, reasoning, calls of tools, and long histories."""

import json

import pytest

from tests.server.client import serving

LAST = "[...document.querySelectorAll('.message.assistant')].at(-1)"
ANSWER = f"{LAST}.view.message"
BODY = f"{LAST}.querySelector('.body')"
IDLE = f"document.getElementById('stop').hidden && {LAST}?.querySelector('.facts')"
# Answers conversations with the deltas that a test gives in `told`, one after another; keeps what was asked.
TOLD = """
const own = window.fetch;
window.told = [];
window.asked = [];
window.fetch = (path, options) => {
  if (path !== "v1/chat/completions") return own(path, options);
  asked.push(JSON.parse(options.body));
  const event = (said) => `data: ${JSON.stringify({ choices: [{ index: 0, ...said }] })}\\n\\n`;
  const deltas = told.map((delta) => event({ delta, finish_reason: null }));
  const ends = event({ delta: {}, finish_reason: told.some((one) => one.tool_calls) ? "tool_calls" : "stop" });
  const parts = [...deltas, ends + "data: [DONE]\\n\\n"].map((text) => new TextEncoder().encode(text));
  const pull = (stream) => (parts.length ? stream.enqueue(parts.shift()) : stream.close());
  return Promise.resolve(new Response(new ReadableStream({ pull })));
};
"""


@pytest.fixture(scope="module")
def port(engine):
    with serving({"tiny": engine}) as (_, port):
        yield port


@pytest.fixture
def page(browser, port):
    browser.open(f"http://localhost:{port}/", before=TOLD)
    yield browser
    assert browser.faults() == []
    assert {url.split("/")[2] for url in browser.requests} == {f"localhost:{port}"}


def tell(page, *deltas):
    """Lets the page ask, and a model answer with these deltas; a text comes in pieces of seven characters."""
    told = []
    for delta in deltas:
        text = [delta[i : i + 7] for i in range(0, len(delta), 7)] if isinstance(delta, str) else None
        told += [{"content": piece} for piece in text] if text is not None else [delta]
    page.value(f"window.told = {json.dumps(told)}; 0")
    n = page.value("asked.length")
    page.click("#prompt")
    page.type("go")
    page.key("Enter")
    assert page.wait(f"asked.length > {n} && {IDLE} !== null && {ANSWER}.finish", 60)
    return page.value(f"{BODY}.innerHTML")


HOSTILE = [
    "<script>faults.push('ran')</script>",
    "<img src=x onerror=\"faults.push('ran')\">",
    "<svg onload=\"faults.push('ran')\"><a xlink:href='javascript:faults.push(1)'>x</a></svg>",
    "[x](javascript:faults.push('ran')) [y](JaVaScRiPt&colon;faults.push('ran')) <javascript:faults.push('ran')>",
    "[x](data:text/html,<script>1</script>) [y](vbscript:x) [z](//other.example/) [w](/admin/drain)",
    "![x](https://other.example/pixel.png) ![y](x\"onerror=\"faults.push('ran'))",
    "<iframe src=https://other.example></iframe><object data=x></object><embed src=x>",
    '<style>body { display: none }</style><div style="background: url(https://other.example/)">x</div>',
    "<form action=https://other.example><input name=q><button>Go</button></form>",
    "<math><mtext></p><img src=x onerror=\"faults.push('ran')\"></math>",
    "<b onclick=\"faults.push('ran')\">x</b><sub style='x'>y</sub>",
    "```html\" onmouseover=\"faults.push('ran')\n<script>faults.push('ran')</script>\n```",
    "| <script>1</script> | [x](javascript:1) |\n|---|---|\n| <img src=x onerror=1> | `<b>` |",
    "$<img src=x onerror=\"faults.push('ran')\">$ \\(<script>1</script>\\)",
    "<base href=https://other.example/><link rel=stylesheet href=https://other.example/x.css><meta http-equiv=refresh>",
    "[a]: javascript:faults.push(1)\n\n[a] <a href='javascript:faults.push(1)' id=prompt name=form>x</a>",
]


def test_hostile_text_is_text(page):
    tell(page, "\n\n".join(HOSTILE))
    names = f"[...new Set([...{BODY}.querySelectorAll('*')].map((one) => one.localName))]"
    allowed = {"a", "button", "code", "div", "figcaption", "figure", "p", "pre", "span", "table", "tbody", "td", "th",
               "thead", "tr"}  # fmt: skip
    assert set(page.value(names)) <= allowed
    attributes = f"[...new Set([...{BODY}.querySelectorAll('*')].flatMap((one) => one.getAttributeNames()))]"
    assert set(page.value(attributes)) <= {"aria-label", "class", "href", "rel", "role", "tabindex", "target", "type"}
    links = page.value(f"[...{BODY}.querySelectorAll('[href]')].map((one) => one.getAttribute('href'))")
    assert links == ["https://other.example/pixel.png"]
    assert "<script>faults.push('ran')</script>" in page.value(f"{BODY}.textContent")
    page.reload()
    assert page.value(f"{BODY}.querySelectorAll('script, img, iframe, form').length") == 0


def test_markdown_is_shown(page):
    made = tell(page, "# One\n\nA *b* **c** `d` ~~e~~ a<br>b H<sub>2</sub>O <https://one.example/x>\n\n> said\n\n"
                "1. x\n   - y\n     - z\n2. w\n\n- [x] done\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n")  # fmt: skip
    for part in ("<h3>One</h3>", "<em>b</em>", "<strong>c</strong>", "<code>d</code>", "<del>e</del>", "a<br>b",
                 "H<sub>2</sub>O", 'href="https://one.example/x"', "<blockquote>", "<ol>",
                 '<td align="right">2</td>'):  # fmt: skip
        assert part in made
    assert page.value(f"{BODY}.querySelectorAll('ul ul').length") == 1
    assert page.value(f"{BODY}.querySelector('input').disabled") is True
    assert page.value(f"{BODY}.querySelector('.table').tabIndex") == 0
    link = f"{BODY}.querySelector('a')"
    assert page.value(f"[{link}.target, {link}.rel]") == ["_blank", "noopener noreferrer nofollow"]


def test_maths_are_text(page):
    tell(page, "So $a_1 * b_2 * c$ and \\(x_i_j\\), but $5 and $6.\n\n$$\n\\sum_{i=1}^n *x* <y>\n$$\n")
    assert page.value(f"[...{BODY}.querySelectorAll('.math')].map((one) => one.textContent)") == [
        "$a_1 * b_2 * c$", "\\(x_i_j\\)", "$$\n\\sum_{i=1}^n *x* <y>\n$$",
    ]  # fmt: skip
    assert page.value(f"{BODY}.querySelectorAll('em').length") == 0


def test_code_is_coloured_and_copied(page):
    code = "def f(n):\n    return '<b>' + str(n)  # more"
    tell(page, f"Here:\n\n```py\n{code}\n```\n\n```unheard-of\nx < y\n```\n")
    assert page.wait(f"{BODY}.querySelector('.hljs-keyword')?.textContent") == "def"
    assert page.value(f"{BODY}.querySelector('pre').textContent") == code
    assert page.value(f"[...{BODY}.querySelectorAll('figcaption')].map((one) => one.firstChild.textContent)") == [
        "py", "unheard-of",
    ]  # fmt: skip
    page.value("addEventListener('copy', (event) => { window.copied = event.clipboardData.getData('text/plain'); }); 0")
    page.click(".body figcaption button")
    assert page.wait("window.copied") == code


def test_a_stream_ends_as_the_whole_text_would(page):
    text = "O\n\n- a\n- b\n\n```js\nlet x = 1;\n```\n\n| a |\n|---|\n| 1 |\n\n[x]\n\n[x]: https://one.example\n\n*e"
    streamed = tell(page, text)
    page.value("window.place = document.createElement('div'); 0")
    page.value(f"import('./page/markdown.js').then(({{ render }}) => render(place, {json.dumps(text)}, true))")
    whole = page.value("place.textContent")
    assert page.value(f"{BODY}.textContent") == whole
    assert 'href="https://one.example"' in streamed


@pytest.mark.parametrize("text", [
    ">" * 5000 + "x", "- " * 2000 + "x", "[" * 20000, "a**a " * 4000, "\n".join("  " * i + "- x" for i in range(300)),
    "|a" * 300 + "|\n" + "|-" * 300 + "|\n" + ("|x" * 300 + "|\n") * 60, "$" * 20001, "\\[" * 8000, "<b>" * 3000,
    "```py\n" + "x = '" * 20000,
], ids=["quotes", "lists", "brackets", "stars", "nested", "table", "dollars", "maths", "tags", "code"])  # fmt: skip
def test_large_and_deep_text_is_shown(page, text):
    tell(page, {"content": text})
    assert page.value(f"{BODY}.textContent.length > 0")
    assert page.value("document.documentElement.scrollWidth <= innerWidth")


def test_reasoning_is_folded(page):
    tell(page, {"reasoning_content": "First <b>I</b> "}, {"reasoning_content": "think."}, "It is *so*.")
    folded = f"{LAST}.querySelector('.reasoning')"
    assert page.value(f"[{folded}.open, {folded}.hidden, {folded}.querySelector('div').textContent]") == [
        False, False, "First <b>I</b> think.",
    ]  # fmt: skip
    assert page.value(f"{BODY}.querySelector('em').textContent") == "so"


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def test_calls_of_tools_are_shown_and_answered(page):
    page.click("#open-settings")
    page.value(f"document.querySelector('[name=tools]').value = {json.dumps(json.dumps([TOOL]))}; 0")
    page.click("#settings .go")
    function = {"name": "weather", "arguments": ""}
    tell(page, {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]},
         {"tool_calls": [{"index": 0, "function": {"arguments": '{"place": "<i>Oslo</i>"}'}}]})  # fmt: skip
    assert page.value("asked[0].tools") == [TOOL]
    assert page.value("document.querySelector('.call b').textContent") == "weather"
    assert json.loads(page.value("document.querySelector('.call pre').textContent")) == {"place": "<i>Oslo</i>"}
    page.value("window.told = [{ content: 'It rains.' }]; 0")
    page.value("document.querySelector('.call textarea').value = 'rain'; 0")
    page.click(".call form button")
    assert page.wait(f"asked.length === 2 && {ANSWER}.content === 'It rains.' && {IDLE} !== null")
    call = {"id": "call_1", "type": "function",
            "function": {"name": "weather", "arguments": '{"place": "<i>Oslo</i>"}'}}  # fmt: skip
    assert page.value("asked[1].messages") == [
        {"role": "user", "content": "go"}, {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]  # fmt: skip
    assert page.value("document.querySelectorAll('.call form').length") == 0


def test_a_history_of_500_messages(page):
    script = """
    (async () => {
      const { save } = await import("./page/store.js");
      const one = { chat: "long", calls: [], ids: [], tokens: [], reasoning: "", finish: "stop", model: "tiny" };
      const messages = Array.from({ length: 500 }, (_, i) => ({
        ...one, id: `m${i}`, parent: i ? `m${i - 1}` : null, role: i % 2 ? "assistant" : "user", at: i,
        content: `Number ${i}\\n\\n\\`\\`\\`py\\nx = ${i}\\n\\`\\`\\``,
      }));
      const chat = { id: "long", title: "long", updated: 1, model: "tiny", settings: {}, leaf: "m499" };
      await save(chat, ...messages);
      sessionStorage.setItem("oxillama-open", "long");
    })()
    """
    page.value(script)
    page.reload()
    assert page.value(f"{ANSWER}.content").startswith("Number 499")
    assert page.wait("document.querySelectorAll('.message').length === 500", 60)
    shown = page.value("[...document.querySelectorAll('.message')].map((one) => one.view.message.id)")
    assert shown == [f"m{i}" for i in range(500)]
    log = "document.getElementById('log')"
    assert page.value(f"{log}.scrollHeight - {log}.scrollTop - {log}.clientHeight < 80")
    tell(page, "The end.")
    assert page.value("document.querySelectorAll('.message').length") >= 30
    assert page.value("asked[0].messages.length") == 501


def test_it_fits_a_phone_and_follows_the_system(page):
    tell(page, "Long" * 100 + "\n\n```\n" + "x" * 400 + "\n```\n\n" + "|a" * 30 + "|\n" + "|-" * 30 + "|\n")
    grounds = set()
    for width, dark in ((360, False), (360, True), (1400, False)):
        page.look(width, 700, dark)
        assert page.value("document.documentElement.scrollWidth <= innerWidth")
        box = page.value("document.getElementById('go').getBoundingClientRect().toJSON()")
        assert box["right"] <= width
        assert box["bottom"] <= 700
        grounds.add(page.value("getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2
    page.look(360, 700)
    assert page.wait("getComputedStyle(document.getElementById('side')).visibility === 'hidden'")
    page.click("#open-side")
    assert page.wait("getComputedStyle(document.getElementById('side')).visibility === 'visible'")
    assert page.value("document.activeElement.id") == "close-side"
    page.key("Escape")
    assert page.wait("getComputedStyle(document.getElementById('side')).visibility === 'hidden'")
    for theme in ("light", "dark", ""):
        page.value("document.getElementById('theme').click()")
        assert page.value("document.documentElement.dataset.theme") == theme


def test_everything_that_is_clicked_has_a_name_and_can_be_reached(page):
    tell(page, "One.\n\n```py\nx\n```\n")
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    named = ("button", "link", "textbox", "searchbox", "combobox", "checkbox", "spinbutton", "dialog")
    nameless = [
        node["role"]["value"] for node in tree
        if node.get("role", {}).get("value") in named and not node.get("name", {}).get("value") and not node["ignored"]
    ]  # fmt: skip
    assert nameless == []
    roles = {node["role"]["value"] for node in tree if not node["ignored"]}
    assert {"log", "main", "navigation", "complementary", "article", "status"} <= roles
    page.value("document.querySelector('.skip').focus()")
    page.key("Enter")
    assert page.wait("document.activeElement.id") == "prompt"
