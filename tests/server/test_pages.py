"""Pages: one to try a model, and the description of the API."""

import base64
import hashlib
import re


def test_the_page_runs_its_own_script_alone(client):
    answer = client.get("/")
    assert answer.headers["content-type"].startswith("text/html")
    body = answer.body.decode()
    script = re.search(r"<script>(.*?)</script>", body, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in answer.headers["content-security-policy"]
    assert re.findall(r"(?:src|href)=|https?://|innerHTML|eval\(", body) == []


def test_the_description_and_the_manual(client):
    assert client.get("/openapi.json").json["openapi"] == "3.1.0"
    body = client.get("/docs").body.decode()
    assert "/v1/chat/completions" in body
    assert "<script" not in body


def test_pages_need_no_key_and_can_be_left_out(configured):
    keyed = configured(api_key="a-long-secret")
    assert [keyed.get(path).status for path in ("/", "/openapi.json", "/docs")] == [200, 200, 200]
    bare = configured(ui=False, docs=False)
    assert [bare.get(path).status for path in ("/", "/openapi.json", "/docs")] == [404, 404, 404]
    assert bare.get("/", origin="http://localhost").status == 404
