"""Trouble with the Hub: what counts as no network, and how long it is waited for."""

import socket
import threading
import time

import pytest

from oxillama.store.trouble import is_reachable, patiently, wait_before_again


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def no_proxies(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_a_site_that_takes_connections(listening, no_proxies):
    assert is_reachable(listening)
    assert is_reachable(f"{listening}/path")


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "https://hub.invalid", "http://", "nonsense", "http://a..b"])
def test_sites_that_take_none(no_proxies, url):
    assert not is_reachable(url)


def test_a_name_server_that_gives_no_answer_is_not_waited_for(no_proxies, monkeypatch):
    asked = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **more: [asked.wait(600)][:0])
    assert not is_reachable("https://huggingface.co", patience=0.05)
    asked.set()


def test_the_proxy_is_what_is_asked(listening, no_proxies, monkeypatch):
    monkeypatch.setenv("https_proxy", listening)
    assert is_reachable("https://hub.invalid")
    monkeypatch.setenv("https_proxy", "127.0.0.1:9")
    assert not is_reachable("https://hub.invalid")
    monkeypatch.setenv("no_proxy", "hub.invalid")
    monkeypatch.setenv("https_proxy", listening)
    assert not is_reachable("https://hub.invalid")


class Answer:
    def __init__(self, status, wait=None):
        self.status_code, self.headers = status, {} if wait is None else {"Retry-After": wait}


class Refused(Exception):
    def __init__(self, *given):
        self.response = Answer(*given)


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (Refused(429, "7"), 7.0), (Refused(429), 1.0), (Refused(429, "Wed, 21 Oct 2015 07:28:00 GMT"), 1.0),
        (Refused(429, "3600"), None), (Refused(429, "9" * 400), 1.0), (Refused(404), None), (Refused(401), None),
        (Refused(503), 0.25), (ConnectionError(), 0.25),
    ],
)  # fmt: skip
def test_waits(error, seconds):
    assert wait_before_again(error, 1) == seconds


def test_what_is_asked_again(monkeypatch):
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    answers = [Refused(429, "2"), Refused(500), "found"]

    def ask():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert patiently(ask) == "found"
    assert waits == [2.0, 0.5]
    with pytest.raises(ConnectionError):
        patiently(lambda: (_ for _ in ()).throw(ConnectionError()))
