"""Pages: one to talk with a model, its files, and the description of the API."""

import contextlib
import hashlib
import re
from pathlib import Path
from threading import current_thread

import pytest

from oxillama.server import pages
from oxillama.server.pages import FOLDER
from tests.server.client import connected, serving

PROJECT = Path(__file__).parents[2]
VENDOR = FOLDER / "vendor"
# SHA-256 of the files as npm's registry has them: marked 18.2.1, dompurify 3.5.0, @highlightjs/cdn-assets 11.12.0.
VENDORED = {
    "highlight.min.js": "67a339aa68880a40c9803def9c8cebb2225dec76230382db86e349370dee70e9",
    "languages/bash.min.js": "7db1758fe6f04cd410760c29879812a3774edc54edcc91323511a24efc0b9e61",
    "languages/c.min.js": "edada72825cceb7dec51cc785efcc3e6378970917e11e4c7dfab29d0079e08a5",
    "languages/cpp.min.js": "aa67eeacdbbda9f40ca34c59147581aef1601f19b71a55966de4ccf4246e8c31",
    "languages/csharp.min.js": "74bb1a32b37d581173fc9d880ab5be6c7e448bbb12552c3e2a3ac7fc3c57cf8f",
    "languages/css.min.js": "2f4264d9a07a4f5446e51e2d93b0c0e031b4fd910e8e44984cd17f996a990b99",
    "languages/diff.min.js": "cbd7cf3b49bee36d6a0cf97789a7c5e68fbfd4231e86a81966f9b78c7bc127d0",
    "languages/dockerfile.min.js": "5a83ccd455a2910e9018f591fc1d2856ff5151ffa9889fc000542e16b329b039",
    "languages/go.min.js": "05658f281f7f12233cd891e879c8b9ebfd5998f5dc3f1e80632889ce61178534",
    "languages/ini.min.js": "b2330623daa8da0c4ef98891b97f393daa2e809721842c312f217e0339e255db",
    "languages/java.min.js": "7987da1c2dcc1d83f7a5a670cdc622fdac834cb1c140ad503bf8d7ea9237ac36",
    "languages/javascript.min.js": "c3dbd515a79e2c00ff4535aa5ad2fe539fb2587d047f9ab826107d0784da7bb6",
    "languages/json.min.js": "8f2343ffbcc4fdea4b336a4241d54d223d52f99b67729d2d6d3556bbf66908ae",
    "languages/kotlin.min.js": "afce4ebc96165516de9ea9fc4c8b146efb556806bf093dc98ea73d3e9acdd3cf",
    "languages/lua.min.js": "60cdaa848a47cdd70a1de706a8b38be5c410880ae65dcc71b989fbdbd782363c",
    "languages/makefile.min.js": "746bebeac4ef23f15a3ac4299feb2d9529cee76517cab33026d4532daaf77f70",
    "languages/markdown.min.js": "73cb474b4687421a0949ded1ba8314ec74c26058688dc7f6154084240352cc79",
    "languages/python.min.js": "fd5d479dcc9d07b957cf07b1df76d3d8fb6ee6f6d1437238d9530a9be724c046",
    "languages/ruby.min.js": "1b4c8f07774a13770cd4e0445fa47c555a41f29dad4d3ca9d1d7c3aad9e4ea79",
    "languages/rust.min.js": "fde151d2b246bef44c98da80e7cac3cbb05de794911305fe9a3adf6beff87659",
    "languages/sql.min.js": "79bead5cf2bfa93d3982073d000a97802f394fe287736644bab30f40cb5c7380",
    "languages/typescript.min.js": "0e10ce9a81d42f8d43a54007ca7e31fe22ad801b2a2e1693d31736aa79fa5404",
    "languages/xml.min.js": "2e8c8ba1e7a200cd83dfbf9c746b8e00f7d7bad966dbfd83eca142cf2caa4dd7",
    "languages/yaml.min.js": "7010955f1f87aef1de085483d79d42817544aaf03c4f57a6fd4eb838f2cdf609",
    "marked.esm.js": "5371fea86fd0656b4fc7bea7c94c663109d82789b69433eeee78d42895aa44de",
    "purify.min.js": "f69a46022ab1f53e969c8ebbca98172c8995785a9b3be72ea4a12d25b1a1bf67",
}
FILES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file())
OWN = [name for name in FILES if not name.startswith("vendor/")]
TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}


def directives(answer):
    """The policy of an answer, by directive."""
    parts = answer.headers["content-security-policy"].split("; ")
    return {name: set(rest) for name, *rest in (part.split(" ") for part in parts)}


def test_the_page_runs_its_own_files_alone(client):
    answer = client.get("/")
    assert answer.headers["content-type"].startswith("text/html")
    policy = directives(answer)
    assert policy["default-src"] == {"'none'"}
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == {"'self'"}
    assert policy["require-trusted-types-for"] == {"'script'"}
    body = answer.body.decode()
    assert re.findall(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=|https?://", body) == []
    for name in re.findall(r"(?:src|href)=\"page/([^\"#]+)", body):
        assert client.get(f"/page/{name}").status == 200


def test_no_module_makes_html_or_code_of_text_by_itself():
    for name in OWN:
        text = (FOLDER / name).read_text("utf-8")
        addresses = re.findall(r"https?://[^\s\"]+", text)
        assert addresses in ([], ["http://www.w3.org/2000/svg"], ["http://www.w3.org/2000/svg"] * 2), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            name
        )
        for found in re.findall(r"(?:from|import\()\s*[\"`](\./[^\"`$]+)[\"`]", text):
            assert (FOLDER / found).is_file(), (name, found)


def test_what_is_vendored_is_what_its_authors_published():
    found = {
        path.relative_to(VENDOR).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.rglob("*") if path.is_file()
    }  # fmt: skip
    assert found == VENDORED
    assert sum(path.stat().st_size for path in VENDOR.rglob("*") if path.is_file()) <= 200_000


@pytest.mark.parametrize(("file", "version"), [
    ("marked.esm.js", "marked v18.2.1"), ("purify.min.js", "DOMPurify 3.5.0"),
    ("highlight.min.js", "Highlight.js v11.12.0"),
])  # fmt: skip
def test_versions_and_licences_are_said(file, version):
    assert version in (VENDOR / file).read_text("utf-8")[:400]
    name, number = version.replace(" v", " ").split(" ")
    notice = (PROJECT / "NOTICE").read_text("utf-8")
    assert re.search(rf"(?m)^{re.escape(name)} {re.escape(number)} \([\w.-]+; .*{re.escape(file)}", notice)


def test_its_own_code_can_be_read():
    """Its code is no more than 1200 lines, without blank ones and comments; what /docs needs is not of it."""
    text = [name for name in OWN if name.endswith(("html", "css", "js"))]
    lines = {name: (FOLDER / name).read_text("utf-8").splitlines() for name in text}
    comment = re.compile(r"\s*(?:/\*.*\*/|//.*)?\s*")
    code = [line for name in text if name != "docs.css" for line in lines[name] if not comment.fullmatch(line)]
    assert len(code) <= 1200
    modules = [lines[name] for name in text if name.endswith("js")]
    assert max(len(line) for module in modules for line in module) <= 140
    assert all(module[0].startswith("/** ") for module in modules)


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/page/main.js"])
def test_nothing_is_read_or_made_in_the_event_loop(client, monkeypatch, path):
    threads = []
    for name in ("assets", "page", "api", "manual_page"):
        make = getattr(pages, name)
        monkeypatch.setattr(pages, name, lambda *given, make=make: threads.append(current_thread()) or make(*given))
    assert client.call("GET", path, headers={"accept": "text/html"}).status == 200
    assert threads
    assert current_thread() not in threads


@pytest.mark.parametrize("name", FILES)
def test_files_have_types_and_tags(client, name):
    if name == "index.html":
        assert client.get(f"/page/{name}").status == 404  # it is at / alone
        return
    answer = client.get(f"/page/{name}")
    assert (answer.status, answer.body) == (200, (FOLDER / name).read_bytes())
    assert answer.headers["content-type"] == TYPES[name.rpartition(".")[2]]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/page/main.js"])
def test_what_a_browser_has_is_not_sent_again(client, path):
    html = {"accept": "text/html"}
    first = client.call("GET", path, headers=html)
    tag = first.headers["etag"]
    assert re.fullmatch(r'"[0-9a-f]{32}"', tag)
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        answer = client.call("GET", path, headers={**html, "if-none-match": known})
        assert (answer.status, answer.body, answer.headers["etag"]) == (304, b"", tag)
        assert "content-length" not in answer.headers
    assert client.call("GET", path, headers={**html, "if-none-match": '"other"'}).body == first.body
    head = client.call("HEAD", path, headers=html)
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", str(len(first.body)))


def test_a_connection_goes_on_behind_what_a_browser_has(engine):
    with serving({"tiny": engine}) as (_, port), contextlib.closing(connected(port)) as connection:
        tag = None
        for status in (200, 304, 304, 200):
            headers = {"If-None-Match": tag} if status == 304 else {}
            connection.request("GET", "/page/style.css", headers=headers)
            answer = connection.getresponse()
            body = answer.read()
            tag = answer.headers["etag"]
            assert (answer.status, body != b"") == (status, status == 200)


@pytest.mark.parametrize("name", [
    "", "../pages.py", "..%2fpages.py", "vendor", "vendor/../main.js", "/etc/passwd", "main.js/", "main.py", "MAIN.JS",
    "x" * 4000,
])  # fmt: skip
def test_nothing_else_is_served(client, name):
    assert client.get(f"/page/{name}").status == (200 if name == "main.js/" else 404)  # a slash at the end is no part


def test_pages_need_no_key_and_can_be_left_out(configured):
    paths = ("/", "/openapi.json", "/docs", "/page/main.js", "/page/vendor/purify.min.js", "/page/docs.css")
    keyed = configured(api_key="a-long-secret")
    assert [keyed.get(path).status for path in paths] == [200] * 6
    bare = configured(ui=False, docs=False)
    assert [bare.get(path).status for path in paths] == [404] * 6
    assert bare.get("/", origin="http://localhost").status == 404
    assert [configured(ui=False).get(path).status for path in paths] == [404, 200, 200, 404, 404, 200]
    assert [configured(docs=False).get(path).status for path in paths] == [200, 404, 404, 200, 200, 200]


BROWSER = "text/html,application/xhtml+xml,*/*;q=0.8"


@pytest.mark.parametrize(("settings", "accept", "kind"), [
    ({}, BROWSER, "text/html"), ({}, "*/*", "text/html"), ({}, "application/json", "text/plain"),
    ({"ollama": True}, BROWSER, "text/html"), ({"ollama": True}, "*/*", "text/plain"),
    ({"ollama": True}, "application/json", "text/plain"), ({"ui": False}, "*/*", "application/json"),
    ({"ui": False}, "application/json", "text/plain"), ({"ui": False, "ollama": True}, BROWSER, "text/plain"),
])  # fmt: skip
def test_the_root_tells_clients_of_ollama_that_it_runs(configured, settings, accept, kind):
    client = configured(**settings)
    for method in ("GET", "HEAD"):
        answer = client.call(method, "/", headers={"accept": accept})
        assert answer.headers["content-type"].startswith(kind)
        assert answer.status == (404 if kind == "application/json" else 200)
        if kind == "text/plain":
            assert answer.body == (b"Ollama is running" if method == "GET" else b"")


def test_clients_without_an_accept_header(configured):
    assert configured(ollama=True).get("/").body == b"Ollama is running"
