"""A model served by Ray: replicas on two nodes, streams, clients that leave, replicas that are killed."""

import http.client
import json
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

import oxillama as ox
from oxillama.core.loading import shipped_model
from oxillama.models.packed import pack_model
from oxillama.ray import serve_app
from tests.ray.cluster import workers

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

GREEDY = {"temperature": 0, "ignore_eos": True}
REPLICA = "ServeReplica:default:Replica"
LIMIT = 180  # seconds after which an answer counts as a hang
TREE = "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router.PrefixCacheAffinityRouter"


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    return pack_model(shipped_model(), tmp_path_factory.mktemp("packed") / "tiny.oxpack", 1)


@pytest.fixture(scope="module")
def port(ray_serve, packed):
    """Two replicas, one on each node, since each needs both CPUs of one."""
    module, port = ray_serve
    options = {"context_size": 1024, "packed": packed, "server": {"max_body": 1 << 16}}
    module.run(serve_app(num_replicas=2, num_cpus=2, name="tiny", **options))
    wait_for(port, "/health")
    return port


def wait_for(port, path):
    """Ray Serve's proxy knows an application some time after it runs."""
    until = time.monotonic() + LIMIT
    while call(port, path)[0] != 200:
        assert time.monotonic() < until
        time.sleep(0.2)


def call(port, path, *, begun=lambda: None, **fields):
    """(status, body). begun: called at the first byte of the body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    try:
        body = json.dumps(fields) if fields else None
        connection.request("POST" if fields else "GET", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        first = answer.read(1)
        begun()
        return answer.status, (first + answer.read()).decode()
    finally:
        connection.close()


def events(body):
    return [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]


def text_of(body):
    """The text of a stream, and whether it came to its end."""
    found = events(body)
    chunks = [json.loads(event) for event in found if event != "[DONE]"]
    return "".join(c["choices"][0]["text"] for c in chunks if c.get("choices")), found[-1:] == ["[DONE]"]


def numbers(port, name):
    """Values of a metric, by replica. Which one answers is a matter of chance."""
    asked = [re.search(rf"^{name}{{.*}} (\S+)$", call(port, "/metrics")[1], re.MULTILINE) for _ in range(40)]
    return {float(found[1]) for found in asked}


def test_answers_are_those_of_the_engine(port, engine):
    for prompt in ("Once upon a time", "The cat", "A", "Hello"):
        status, body = call(port, "/v1/completions", prompt=prompt, max_tokens=12, **GREEDY)
        assert status == 200
        assert json.loads(body)["choices"][0]["text"] == engine.generate(prompt, max_tokens=12, **GREEDY).text
    assert len(workers(REPLICA)) == 2


def test_replicas_map_the_same_packed_weights(port, packed):
    replicas = workers(REPLICA)
    assert len(replicas) == 2
    inode = packed.stat().st_ino
    for pid in replicas:
        mapped = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if str(packed) in line]
        assert mapped
        assert all(int(line[4]) == inode and "w" not in line[1] for line in mapped)


def test_streams_come_piece_by_piece(port, engine):
    status, body = call(port, "/v1/completions", prompt="The cat", max_tokens=40, stream=True, **GREEDY)
    assert status == 200
    assert text_of(body) == (engine.generate("The cat", max_tokens=40, **GREEDY).text, True)
    assert len(events(body)) > 10


def test_each_replica_computes_with_the_cpus_that_it_has(port):
    status, body = call(port, "/version")
    assert status == 200
    assert json.loads(body)["threads"] == min(2, len(os.sched_getaffinity(0)))


def test_refusals_are_those_of_the_server(port):
    status, body = call(port, "/v1/completions", promt="The cat")
    assert status == 400
    assert json.loads(body)["error"]["param"] == "promt"
    assert call(port, "/v1/completions", prompt="a", model="none")[0] == 404
    assert call(port, "/v1/completions", prompt="a" * (1 << 17))[0] == 413
    status, body = call(port, "/v1/messages", messages=[], max_tokens=1)
    assert status == 400
    assert json.loads(body)["type"] == "error"


def test_prompts_that_begin_alike_meet_at_one_replica(port):
    story = "Once upon a time there was a little {} that lived in the red barn of a farm, with a cow and a hen. "
    for animal in ("fox", "cat", "dog", "bird", "mouse", "frog", "bear", "duck"):
        messages = [{"role": "user", "content": story.format(animal)}]
        cached = []
        for _ in range(3):
            status, body = call(port, "/v1/chat/completions", messages=messages, max_tokens=4, **GREEDY)
            assert status == 200
            answer = json.loads(body)
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
            messages = [*messages, answer["choices"][0]["message"], {"role": "user", "content": "And then?"}]
        assert min(cached[1:]) >= 16, cached
    assert len(numbers(port, "oxillama_prompt_tokens_total")) == 2  # both had some of them


def test_a_client_that_leaves_ends_its_request(port):
    fields = {
        "prompt": "The little cow",
        "max_tokens": 900,
        "stream": True,
        "n": 8,
        "temperature": 1,
        "ignore_eos": True,
    }
    data = json.dumps(fields).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as client:
        client.sendall(f"{head}{len(data)}\r\n\r\n".encode() + data)
        assert b" 200 " in client.recv(1 << 16)
    until = time.monotonic() + LIMIT
    while numbers(port, "oxillama_num_requests_running") != {0.0}:
        assert time.monotonic() < until
    cancelled = r'oxillama_request_success_total{.*finished_reason="cancelled".*} [1-9]'
    assert any(re.search(cancelled, call(port, "/metrics")[1]) for _ in range(40))


def test_a_replica_that_is_killed_loses_no_request_silently(port, engine):
    """A request of which nothing was sent is given to another one; a stream that had begun ends with an error."""
    prompts = [f"Story number {i}:" for i in range(24)]
    options = {"max_tokens": 400, **GREEDY}
    expected = [engine.generate(prompt, **options).text for prompt in prompts]
    answers, begun = [None] * len(prompts), []

    def ask(i):
        stream = i % 2 == 1
        begin = (lambda: begun.append(i)) if stream else (lambda: None)
        answers[i] = call(port, "/v1/completions", prompt=prompts[i], stream=stream, begun=begin, **options)

    threads = [threading.Thread(target=ask, args=(i,), daemon=True) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    while len(begun) < 8:  # of 12: on both replicas
        time.sleep(0.01)
    os.kill(workers(REPLICA)[0], signal.SIGKILL)
    for thread in threads:
        thread.join(LIMIT)
    assert None not in answers, "hangs"
    assert [
        json.loads(body)["choices"][0]["text"] if status == 200 else status for status, body in answers[::2]
    ] == expected[::2]
    broken = 0
    for (status, body), text in zip(answers[1::2], expected[1::2], strict=True):
        assert status == 200
        found, whole = text_of(body)
        if whole:
            assert found == text
        else:
            broken += 1
            assert text.startswith(found)
            assert json.loads(events(body)[-1])["error"]["code"] == "replica_lost"
    assert 0 < broken < 12  # those of the one, but not of the other


def test_another_replica_takes_its_place(port):
    until = time.monotonic() + LIMIT
    while len(numbers(port, "oxillama_prompt_tokens_total")) < 2:
        call(port, "/v1/completions", prompt=f"Number {time.monotonic()}", max_tokens=1)
        assert time.monotonic() < until


def test_requests_under_way_end_before_the_application(port, ray_serve, engine):
    module, _ = ray_serve
    options = {"max_tokens": 600, **GREEDY}
    found = []
    asking = threading.Thread(
        target=lambda: found.append(call(port, "/v1/completions", prompt="A", stream=True, **options)), daemon=True
    )
    asking.start()
    time.sleep(0.5)
    module.delete("default")
    asking.join(LIMIT)
    assert text_of(found[0][1]) == (engine.generate("A", **options).text, True)


def test_rays_own_prefix_router_finds_the_text_of_a_request(ray_serve):
    """Below another path. Its public name needs vLLM or SGLang."""
    from ray.serve.config import RequestRouterConfig

    module, port = ray_serve
    routing = RequestRouterConfig(request_router_class=TREE)
    app = serve_app(num_replicas=2, num_cpus=0.5, routing=routing, num_threads=1, name="tiny")
    module.run(app, name="tree", route_prefix="/tree")
    wait_for(port, "/tree/health")
    prompt = "Once upon a time there was a little fox that lived in the red barn of a farm. " * 2
    for animal in ("fox", "cat", "dog", "bird"):
        cached = []
        for _ in range(3):
            status, body = call(port, "/tree/v1/completions", prompt=f"{animal}. {prompt}", max_tokens=1)
            assert status == 200
            cached.append(json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert min(cached[1:]) >= 16, cached
    module.delete("tree")
