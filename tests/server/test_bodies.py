"""Bodies: packed ones within the limit of bodies, and strings that are cut in the middle of a character."""

import gzip
import json
import logging
import zlib

import pytest

from oxillama.server.bodies import parse_body, unpacked
from oxillama.server.config import ServerConfig
from oxillama.server.errors import ApiError
from oxillama.server.reading import Reading

SETTINGS = ServerConfig(max_body=2000)
BODY = json.dumps({"prompt": "The little fox", "max_tokens": 3, "temperature": 0}).encode()


def raw(data):
    packed = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packed.compress(data) + packed.flush()


PACKED = {"gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress, " Deflate": raw, "identity": bytes}


@pytest.mark.parametrize("encoding", PACKED)
def test_packed_bodies_are_those_that_were_packed(client, encoding):
    plain = client.post("/v1/completions", BODY)
    packed = client.post("/v1/completions", PACKED[encoding](BODY), {"content-encoding": encoding})
    assert (packed.status, packed.json["choices"]) == (200, plain.json["choices"])


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "compress", "x" * 500])
def test_others_are_named(client, encoding):
    answer = client.post("/v1/completions", BODY, {"content-encoding": encoding})
    assert (answer.status, answer.error["code"]) == (415, "unsupported_encoding")
    assert answer.error["message"].startswith(
        f"Content-Encoding must be gzip, deflate or identity, not '{encoding:.50}"
    )
    assert len(answer.error["message"]) < 150
    assert answer.headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize(
    "body",
    [
        BODY, b"", gzip.compress(BODY)[:-1], gzip.compress(BODY) + b"x", gzip.compress(BODY) * 2,
        gzip.compress(BODY)[:-8] + bytes(8), b"\x1f\x8b",
    ],
    ids=["plain", "empty", "cut", "more", "twice", "checksum", "begin"],
)  # fmt: skip
def test_what_was_not_packed_so(client, body):
    answer = client.post("/v1/completions", body, {"content-encoding": "gzip"})
    assert (answer.status, answer.error["code"]) == (400, "invalid_body")
    assert answer.error["message"] == "the body is not what its Content-Encoding, gzip, says"


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress, raw])
def test_no_more_is_unpacked_than_a_body_may_have(pack):
    headers = {"content-encoding": "gzip" if pack is gzip.compress else "deflate"}
    assert unpacked(pack(bytes(2000)), headers, SETTINGS) == bytes(2000)
    for size in (2001, 100_000_000):
        with pytest.raises(ApiError, match="the body has more than 2000 bytes") as caught:
            unpacked(pack(bytes(size)), headers, SETTINGS)
        assert caught.value.status == 413


def test_a_packed_body_is_within_the_limit_of_the_server(configured):
    client = configured(max_body=2000)
    answer = client.post("/v1/completions", gzip.compress(bytes(10_000_000)), {"content-encoding": "gzip"})
    assert answer.status == 413


# ---- halves of surrogate pairs


def read(text, strict=False):
    reading = Reading(strict)
    return parse_body(text.encode(), "application/json", reading), reading


def test_halves_become_the_character_for_what_is_none():
    value, reading = read(r'{"a": "x\ud83d", "b": [1, {"c": "\ude00\ud83dy"}, "\ud83d\ude00"], "d": "\u00e4"}')
    assert value == {"a": "x�", "b": [1, {"c": "��y"}, "😀"], "d": "ä"}
    assert reading.header == "a=surrogate, b[1].c=surrogate"
    assert set(reading.left_out.values()) == {"surrogate"}
    value, reading = read(r'{"a\ud83d": 1}')
    assert (value, reading.header) == ({"a�": 1}, "a?=surrogate")
    assert read(r'{"a": "\ud83d\ude00"}')[1].header == ""


def test_strict_readers_refuse_them():
    with pytest.raises(
        ApiError, match=r"^b\[1\]=surrogate is not supported: it holds half of a surrogate pair"
    ) as caught:
        read(r'{"b": ["", "\ud83d"]}', strict=True)
    assert (caught.value.status, caught.value.param) == (400, "b[1]")


def test_names_that_become_alike():
    with pytest.raises(ApiError, match="the same key twice"):
        read(r'{"a\ud83d": 1, "a\ude00": 2}')
    with pytest.raises(ApiError, match="the same key twice"):
        read(r'{"a": 1, "a": "\ud83d"}')


def test_places_stay_short_however_deep_they_are():
    deep = "".join(f'{{"{"k" * 60}": ' for _ in range(150)) + r'"\ud83d"' + "}" * 150
    value, reading = read('{"a": ' + deep + "}")
    assert max(map(len, reading.left_out)) < 220
    assert len(reading.header) < 250
    assert "�" in json.dumps(value, ensure_ascii=False)
    many = [r'"\ud83d"'] * 5000
    value, reading = read('{"a": [' + ",".join(many) + "]}")
    assert (value["a"], reading.n_left_out) == (["�"] * 5000, 5000)
    assert reading.header.endswith("more")


def test_keys_that_a_client_wrote_are_in_no_place():
    body = {"input": [{"arguments": {"secret": ["x"]}}], "tools": [{"parameters": {"properties": {"secret": "x"}}}]}
    _, reading = read(json.dumps(body).replace('"x"', r'"\ud83d"'))
    assert reading.header == "input[0].arguments[0]=surrogate, tools[0].parameters=surrogate"
    _, reading = read(r'{"input": [{"input": {"secret\ud83d": {"a": "\ud83d"}}}], "metadata": {"secret": "\ud83d"}}')
    assert reading.header == "input[0].input=surrogate, metadata=surrogate"


def test_a_conversation_that_was_cut_by_utf_16(client, caplog):
    caplog.set_level(logging.INFO, "oxillama")
    body = rb'{"messages": [{"role": "user", "content": "Hi \ud83d"}], "max_tokens": 3, "temperature": 0}'
    answer = client.post("/v1/chat/completions", body)
    same = client.post("/v1/chat/completions", body.replace(rb"\ud83d", rb"\ufffd"))
    assert (answer.status, answer.json["choices"]) == (200, same.json["choices"])
    assert answer.headers["x-oxillama-left-out"] == "messages[0].content=surrogate"
    assert "x-oxillama-left-out" not in same.headers
    assert any("left out of requests" in r.getMessage() and "surrogate" in r.getMessage() for r in caplog.records)


def test_a_strict_server_refuses_them(configured):
    body = rb'{"messages": [{"role": "user", "content": "Hi \ud83d"}]}'
    answer = configured(strict=True).post("/v1/chat/completions", body)
    assert (answer.status, answer.error["param"]) == (400, "messages[0].content")
