"""Manual of the API: all that /openapi.json has, as a page."""

import html
import re

from oxillama.server.manual import manual, operations
from oxillama.server.tables import openapi


def text_of(page):
    return html.unescape(re.sub(r"<[^>]+>", "", page))


def test_every_path_and_field_is_there(client):
    page, api = client.get("/docs").body.decode(), client.get("/openapi.json").json
    shown = text_of(page)
    for path, methods in api["paths"].items():
        for method, said in methods.items():
            assert f"{method.upper()} {path}" in shown
            content = said.get("requestBody", {}).get("content", {}).get("application/json", {})
            for name in content.get("schema", {}).get("properties", {}):
                assert f"<code>{name}</code>" in page
    assert api["info"]["version"] in shown


def test_the_page_has_no_script_and_a_place_for_each_link(client):
    answer = client.get("/docs")
    page = answer.body.decode()
    assert re.findall(r"<script|<style|\sstyle=|\son\w+=|https?://", page) == []
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; style-src 'self'")
    places = re.findall(r'id="([^"]+)"', page)
    assert len(places) == len(set(places))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(places)
    assert 'href="page/docs.css"' in page
    assert 'href="../page/docs.css"' in client.get("/docs/").body.decode()


def test_paths_that_do_the_same_stand_together():
    found = {one.paths[0]: one.paths[1:] for one in operations(openapi())}
    assert found["POST /v1/chat/completions"] == ["POST /chat/completions"]
    assert found["POST /v1/rerank"] == ["POST /v2/rerank", "POST /rerank"]


def test_texts_of_an_api_are_text():
    field = {"type": "string", "description": "<img src=x> or `<b>`"}
    inner = {"type": "object", "properties": {"deep": {"type": "array", "items": {"type": "integer", "minimum": 1}}}}
    schema = {"type": "object", "properties": {"<i>": field, "part": inner}, "required": ["part"]}
    said = {"summary": "<u>", "requestBody": {"content": {"application/json": {"schema": schema}}}}
    api = {"openapi": "3.1.0", "info": {"title": "<t>", "version": "1"}, "paths": {"/v1/<p>": {"post": said}}}
    page = manual(api, "page")
    assert re.findall(r"<(?:i|u|t|p|img)>|<img", page.replace("<p>", "")) == []
    assert "&lt;img src=x&gt; or <code>&lt;b&gt;</code>" in page
    assert "list of integer from 1" in page
    assert page.count('title="required"') == 1


def test_a_schema_has_every_field_that_it_requires():
    def check(schema):
        assert set(schema.get("required", ())) <= set(schema.get("properties", ()))
        for part in (*schema.get("properties", {}).values(), *schema.get("anyOf", ())):
            check(part)
        if "items" in schema:
            check(schema["items"])

    for methods in openapi()["paths"].values():
        for said in methods.values():
            if "requestBody" in said:
                check(said["requestBody"]["content"]["application/json"]["schema"])
