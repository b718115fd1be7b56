"""Keys, hosts, origins, and paths that need them."""

import math
import time
from pathlib import Path

import pytest

import oxillama as ox
from oxillama.core.loading import shipped_model
from oxillama.errors import ConfigError
from oxillama.server import ServerConfig, create_app
from oxillama.server.auth import read_keys
from oxillama.server.metrics import ServerMetrics, process_metrics
from tests.server.client import HI, Client

MODELS = Path(__file__).parents[1] / "data" / "models"

KEY = "a-long-secret"


@pytest.fixture
def keyed(configured, tmp_path):
    users, admins = tmp_path / "users", tmp_path / "admins"
    users.write_text(f"# users\nann:{KEY} max_concurrent=1\nbob:another-secret tpm=10\n")
    admins.write_text("root:admin-secret\n")
    return configured(api_key_file=str(users), admin_key_file=str(admins))


@pytest.mark.parametrize("path", ["/v1/models", "/version", "/metrics", "/tokenizer_info", "/nothing"])
def test_every_path_but_a_few_needs_a_key(keyed, path):
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {KEY}"}, {"x-api-key": ""}):
        answer = keyed.get(path, **headers)
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
    for headers in ({"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}, {"authorization": "bearer another-secret"}):
        assert keyed.get(path, **headers).status != 401


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/ready"])
def test_signs_of_life_need_none(keyed, path):
    assert keyed.get(path).status == 200


def test_public_metrics(configured):
    assert configured(api_key=KEY, public_metrics=True).get("/metrics").status == 200


def test_tokens_of_a_minute(keyed):
    asked = {"messages": HI, "max_tokens": 5}
    headers = {"x-api-key": "another-secret"}
    assert keyed.post("/v1/chat/completions", asked, headers).status == 200
    answer = keyed.post("/v1/chat/completions", asked, headers)
    assert (answer.status, answer.error["code"], answer.error["type"]) == (429, "rate_limited", "rate_limit_error")
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert answer.headers["x-ratelimit-remaining-tokens"] == "0"
    assert keyed.post("/v1/chat/completions", asked, {"x-api-key": KEY}).status == 200


def test_headers_count_the_answer_that_they_belong_to(configured, tmp_path):
    (tmp_path / "users").write_text(f"ann:{KEY} tpm=1000\n")
    client = configured(api_key_file=str(tmp_path / "users"))
    left = 1000
    for path, asked in (
        ("/v1/completions", {"prompt": "a cat", "max_tokens": 5}), ("/v1/embeddings", {"input": "a cat"}),
        ("/v1/chat/completions", {"messages": HI, "max_tokens": 5}),
    ):  # fmt: skip
        answer = client.post(path, asked, {"x-api-key": KEY})
        left -= answer.json["usage"]["total_tokens"]
        assert answer.headers["x-ratelimit-remaining-tokens"] == str(left)


@pytest.mark.parametrize(("host", "status"), [
    ("localhost", 200), ("localhost:8000", 200), ("127.0.0.1:1", 200), ("[::1]:8000", 200), ("rebound.example", 403),
    ("rebound.example:8000", 403), ("[", 403), ("", 200), ("mine.example", 200),
])  # fmt: skip
def test_hosts_without_a_key(configured, host, status):
    answer = configured(allowed_host=("mine.example",)).get("/v1/models", host=host)
    assert answer.status == status
    if status == 403:
        assert answer.error["code"] == "host_not_allowed"


def test_origins(configured):
    client = configured(cors_origin=("https://app.example",))
    assert client.get("/v1/models", origin="https://evil.example").error["code"] == "origin_not_allowed"
    assert client.get("/v1/models", origin="null").status == 403
    answer = client.get("/v1/models", origin="https://app.example")
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "access-control-allow-credentials" not in answer.headers
    asked = {"origin": "https://app.example", "access-control-request-headers": "authorization"}
    answer = client.call("OPTIONS", "/v1/chat/completions", headers=asked)
    assert answer.status == 204
    assert answer.headers["access-control-allow-headers"] == "authorization"
    assert client.get("/v1/models", origin="http://localhost").status == 200  # a page of this server


def test_keys_have_prefix_caches_of_their_own(configured, tmp_path):
    """How many tokens were cached tells nothing of what another key asked."""
    file = tmp_path / "keys"
    file.write_text(f"ann:{KEY}\nbob:another-secret\n")
    messages = [{"role": "user", "content": "A long message, " * 12}]

    def cached(client, key):
        answer = client.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1}, {"x-api-key": key})
        return answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]

    own = configured(api_key_file=str(file))
    assert cached(own, KEY) == 0
    assert cached(own, KEY) > 0
    assert cached(own, "another-secret") == 0
    shared = configured(api_key_file=str(file), share_prefix_cache=True)
    cached(shared, KEY)
    assert cached(shared, "another-secret") > 0


@pytest.mark.parametrize(("path", "form"), [
    ("/tokenize", "chat"), ("/v1/responses/input_tokens", "responses"), ("/v1/messages/count_tokens", "messages"),
    ("/v1/chat/completions", "chat"),
])  # fmt: skip
def test_schemas_of_one_key_are_not_known_to_another(configured, tmp_path, engine, path, form):
    file = tmp_path / "keys"
    file.write_text(f"ann:{KEY}\nbob:another-secret\n")
    client = configured(api_key_file=str(file), tool_format="hermes")
    engine.shrink_to_fit()
    faults = engine.context.factory._grammars._faults
    own = {"name": "f", "parameters": {"type": "object", "title": path}, "strict": True}  # which is checked by itself
    tool = {
        "chat": {"type": "function", "function": own},
        "responses": {"type": "function", **own},
        "messages": {"name": "f", "input_schema": own["parameters"], "strict": True},
    }[form]
    fields = {"input": "hi"} if form == "responses" else {"messages": HI}
    if "count" not in path and "tok" not in path:
        fields["max_tokens"] = 1
    for n, key in ((1, KEY), (1, KEY), (2, "another-secret")):
        answer = client.post(path, fields | {"tools": [tool]}, {"authorization": f"Bearer {key}"})
        assert answer.status == 200, answer.body
        assert len(faults.contents()) == n
        assert None not in faults.contents()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("path", "asked"), [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "A long message, " * 12}], "max_tokens": 1}),
    ("/v1/completions", {"prompt": "A long prompt, " * 12, "max_tokens": 1}),
    ("/v1/responses", {"input": "A long input, " * 12, "max_output_tokens": 16}),
])  # fmt: skip
def test_a_salt_divides_the_prefix_cache_and_a_prompt_cache_key_does_not(
    configured, tmp_path, engine, path, asked, shared
):
    engine.shrink_to_fit()
    file = tmp_path / "keys"
    file.write_text(f"ann:{KEY}\nbob:another-secret\n")
    client = configured(api_key_file=str(file), share_prefix_cache=shared)

    def cached(key=KEY, **fields):
        usage = client.post(path, asked | fields, {"x-api-key": key}).json["usage"]
        details = usage.get("prompt_tokens_details") or usage["input_tokens_details"]
        return details["cached_tokens"]

    assert cached(prompt_cache_key="one") == 0
    found = cached(prompt_cache_key="one")
    assert found > 0
    assert cached(prompt_cache_key="two") == cached() == found
    assert (cached("another-secret", prompt_cache_key="one") > 0) is shared
    assert cached(cache_salt="one") == 0
    assert cached(cache_salt="one", prompt_cache_key="one") == found
    assert cached(cache_salt="two", prompt_cache_key="one") == 0


@pytest.mark.parametrize("line", [
    "short:abc", "no-key-at-all", "na me:secret-secret", "a:secret-secret max=1", "a:secret-secret tpm=0",
    "a:secret-secret tpm=x", "a:secret-secret\na:other-secret", "a:secret-secret\nb:secret-secret", "# nothing",
])  # fmt: skip
def test_key_files_that_are_wrong(tmp_path, line):
    file = tmp_path / "keys"
    file.write_text(line)
    with pytest.raises(ConfigError) as raised:
        read_keys(str(file))
    assert "secret" not in str(raised.value).replace(str(file), "")


def test_key_files_that_are_not_there(tmp_path):
    with pytest.raises(ConfigError, match="can't be read"):
        read_keys(str(tmp_path / "none"))


def test_request_ids(client):
    assert client.get("/health", **{"x-request-id": "my-id:1"}).headers["x-request-id"] == "my-id:1"
    for bad in ("a b", "x" * 129, ""):
        assert client.get("/health", **{"x-request-id": bad}).headers["x-request-id"].startswith("req_")


def test_unknown_paths_and_methods(client):
    answer = client.get("/v1/nothing")
    assert (answer.status, answer.error["code"]) == (404, "unknown_url")
    assert client.post("/api/nothing", {}).error == "there is no /api/nothing"
    answer = client.get("/v1/completions")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert client.call("HEAD", "/health").body == b""


def test_too_many_headers(client):
    answer = client.get("/health", **{f"x-{i}": "y" for i in range(120)})
    assert (answer.status, answer.error["code"]) == (431, "too_many_headers")


def test_a_template_of_the_server_counts_for_what_a_model_can_do(tmp_path):
    path = tmp_path / "template.jinja"
    path.write_text("{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}")
    with ox.load(MODELS / "qwen3.gguf", num_threads=1) as engine:  # it has no template
        for settings, chats in (({}, []), ({"chat_template": str(path)}, ["chat"])):
            for form, called in (("none", False), ("text", False), ("hermes", True), ("generic", True), (None, True)):
                client = Client(create_app({"bare": engine}, ServerConfig(**settings, tool_format=form)))
                (model,) = client.get("/v1/models").json["data"]
                calls = ["tools"] if chats and called else []
                assert model["oxillama"]["capabilities"] == [*chats, "completions", "embeddings", *calls]


@pytest.mark.parametrize(("text", "fault"), [("", "is empty"), ("{% if", "does not compile")])
def test_a_template_that_no_chat_can_use_is_refused_at_the_start(engine, tmp_path, text, fault):
    path = tmp_path / "template.jinja"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"^chat_template {path}.*{fault}"):
        create_app({"tiny": engine}, ServerConfig(chat_template=str(path)))


def test_models_are_listed(client, configured, engine):
    found = client.get("/v1/models").json["data"]
    assert [one["id"] for one in found] == ["tiny"]
    known = found[0]["oxillama"]
    assert known["capabilities"] == ["chat", "completions", "embeddings", "tools"]
    assert (known["quantization"], known["context_length"]) == ("Q8_0", engine.context_size)
    with ox.gguf.open(shipped_model()) as file:
        assert known["parameters"] == sum(math.prod(t.shape) for t in file.tensors.values())
        assert known["size"] == sum(t.nbytes for t in file.tensors.values())
    (model,) = configured(tool_format="hermes").get("/v1/models").json["data"]
    assert model["oxillama"]["capabilities"] == ["chat", "completions", "embeddings", "tools"]
    for form in ("text", "none"):
        (text,) = configured(tool_format=form).get("/v1/models").json["data"]
        assert text["oxillama"]["capabilities"] == ["chat", "completions", "embeddings"]
    assert client.get("/v1/models/tiny").json["id"] == "tiny"
    answer = client.get("/v1/models/tinny")
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    assert "did you mean 'tiny'? There are: tiny" in answer.error["message"]
    assert client.get("/v1/models/x").error["message"].endswith("does not exist. There are: tiny")


def test_names_of_a_model(configured):
    client = configured(served_model_name=("gpt-4o",))
    for name in ("gpt-4o", "tiny", "", None):
        assert client.post("/v1/completions", prompt="a", max_tokens=1, model=name).status == 200
    assert client.post("/v1/completions", prompt="a", model="gpt-5").status == 404
    assert (
        configured(served_model_name=("*",)).post("/v1/completions", prompt="a", model="gpt-5").json["model"] == "gpt-5"
    )


def test_metrics_of_engines_and_requests(client):
    client.post("/v1/completions", prompt="a", max_tokens=1)
    client.post("/v1/completions", prompt="a", max_tokens=-2)
    text = client.get("/metrics").body.decode()
    assert 'oxillama_generation_tokens_total{model="tiny"}' in text
    assert 'oxillama_http_requests_total{path="/v1/completions",method="POST",status="200"}' in text
    assert 'oxillama_requests_refused_total{code="invalid_value"}' in text
    assert client.get("/metrics", accept="application/openmetrics-text").body.decode().endswith("# EOF\n")


def test_metrics_of_the_process(client, tmp_path):
    for accept in ("text/plain", "application/openmetrics-text"):
        text = client.get("/metrics", accept=accept).body.decode()
        found = {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if line.startswith("process_")}
        assert found["process_cpu_seconds_total"] > 0
        assert found["process_max_fds"] > 0
        if Path("/proc/self/stat").exists():
            status = Path("/proc/self/status").read_text()
            resident = int(status.partition("VmRSS:")[2].split()[0]) << 10
            assert found["process_resident_memory_bytes"] == pytest.approx(resident, rel=0.2)
            assert 0 < time.time() - found["process_start_time_seconds"] < 100_000
            assert 3 <= found["process_open_fds"] < 10_000
    assert "process_open_fds" not in process_metrics(False, tmp_path)


def metrics_of(client, key):
    return client.get("/metrics", **({} if key is None else {"x-api-key": key})).body.decode()


def test_a_key_sees_its_own_counts_alone(keyed):
    for key in (KEY, "another-secret", "admin-secret"):
        assert keyed.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, {"x-api-key": key}).status == 200
    keyed.post("/v1/embeddings", {"input": "a"}, {"x-api-key": "another-secret"})
    keyed.post("/v1/completions", {"prompt": "a", "max_tokens": -2}, {"x-api-key": "another-secret"})
    text = metrics_of(keyed, KEY)
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert 'oxillama_http_requests_total{path="/v1/completions",method="POST",status="200"} 1' in samples
    assert [line for line in samples if "key_tokens" in line and 'key="ann"' not in line] == []
    assert 'oxillama_key_tokens_total{key="ann",kind="completion"} 1' in samples
    assert "oxillama_http_in_flight 1" in samples
    for word in ("bob", "root", "embeddings", "invalid_value", "model=", "process_"):
        assert word not in text
    assert 'status="400"' in metrics_of(keyed, "another-secret")
    answer = keyed.get("/metrics", **{"x-api-key": KEY, "accept": "application/openmetrics-text"})
    assert answer.body.endswith(b"# EOF\n")


def test_administrators_see_all_counts(keyed):
    for key in (KEY, "another-secret"):
        keyed.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, {"x-api-key": key})
    text = metrics_of(keyed, "admin-secret")
    for word in ('key="ann"', 'key="bob"', 'model="tiny"', "process_cpu_seconds_total"):
        assert word in text


def test_an_administrators_counts_are_not_those_of_a_user_of_its_name(configured, tmp_path):
    users, admins = tmp_path / "users", tmp_path / "admins"
    users.write_text(f"ann:{KEY}\n")
    admins.write_text("ann:admin-secret\n")
    client = configured(api_key_file=str(users), admin_key_file=str(admins))
    client.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, {"x-api-key": "admin-secret"})
    assert "oxillama_key_tokens_total{" not in metrics_of(client, KEY)


@pytest.mark.parametrize(("settings", "key"), [({"api_key": KEY}, KEY), ({}, None), ({"public_metrics": True}, None)])
def test_all_counts_where_there_is_nobody_else_or_they_are_public(configured, settings, key):
    assert 'model="tiny"' in metrics_of(configured(**settings), key)


def test_clients_without_a_key_are_kept_no_count_of(keyed):
    for key in (None, "wrong"):
        assert keyed.get("/metrics", **({} if key is None else {"x-api-key": key})).status == 401
    assert keyed.app.service._own_metrics == {}


def test_metrics_that_none_reads_stay_small():
    metrics = ServerMetrics()
    for i in range(5000):
        metrics.ended("/a", "GET", 200, i / 1000)
    assert sum(len(histogram._observed) for histogram in metrics._durations.values()) < 1024
    assert 'oxillama_http_request_duration_seconds_count{path="/a"} 5000' in metrics.text(False)


def test_methods_that_are_made_up_are_one_in_the_metrics(configured):
    client = configured()
    for i in range(3):
        assert client.call(f"BREW{i}", "/v1/models").status == 405
    text = client.get("/metrics").body.decode()
    assert 'method="other"' in text
    assert "BREW" not in text
