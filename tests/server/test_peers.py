"""Addresses that stand for one client, and those that trusted proxies tell."""

import pytest

from oxillama.errors import ConfigError
from oxillama.server import ServerConfig, create_app
from oxillama.server.peers import PeerCounts, Peers


@pytest.mark.parametrize(("address", "counted"), [
    ("203.0.113.7", "203.0.113.7"),
    ("::ffff:203.0.113.7", "203.0.113.7"),
    ("127.0.0.1", None),
    ("127.8.8.8", None),
    ("::1", None),
    ("::ffff:127.0.0.1", None),
    ("10.1.2.3", None),  # of the proxies
    ("::ffff:10.1.2.3", None),
    ("2001:db8::7", None),
    ("2001:db8:0:1:aaaa::1", "2001:db8:0:1::/64"),
    ("2001:db8:0:1:bbbb::2", "2001:db8:0:1::/64"),
    ("fe80::1%eth0", "fe80::/64"),
    ("", None),
    ("no address", None),
])  # fmt: skip
def test_what_an_address_is_counted_as(address, counted):
    assert Peers(("10.0.0.0/8", "2001:db8::7")).counted_as(address) == counted


@pytest.mark.parametrize(("told", "client"), [
    ((), "10.0.0.1"),
    (("203.0.113.7",), "203.0.113.7"),
    (("6.6.6.6, 203.0.113.7",), "203.0.113.7"),  # the first one is what the client says
    (("203.0.113.7, 10.0.0.2",), "203.0.113.7"),  # through two proxies
    (("6.6.6.6", "203.0.113.7, 10.0.0.2"), "203.0.113.7"),
    (("203.0.113.7", "10.0.0.2"), "203.0.113.7"),
    (("203.0.113.7:4711",), "203.0.113.7"),
    (("[2001:db8::1]:4711",), "2001:db8::1"),
    (("2001:db8::1",), "2001:db8::1"),
    (("6.6.6.6, unknown",), "10.0.0.1"),
    (("6.6.6.6, nonsense, 10.0.0.2",), "10.0.0.2"),
    (("10.0.0.3, 10.0.0.2",), "10.0.0.3"),
    (("",), "10.0.0.1"),
    (("6.6.6.6," + "10.0.0.2," * 1000 + "10.0.0.2",), "10.0.0.2"),
])  # fmt: skip
def test_the_client_behind_proxies(told, client):
    peers = Peers(("10.0.0.0/8",))
    headers = [(b"x-forwarded-for", value.encode()) for value in told]
    assert peers.client_of("10.0.0.1", headers) == client
    assert peers.client_of("203.0.113.9", headers) == "203.0.113.9"  # whose word counts for nothing
    assert Peers(()).client_of("127.0.0.1", headers) == "127.0.0.1"


def test_wrong_proxies_are_refused(engine):
    for wrong in ("proxy.example", "10.0.0.0/33", "10.0.0.1:80"):
        with pytest.raises(ConfigError, match="trusted_proxy must be addresses or networks"):
            create_app({"tiny": engine}, ServerConfig(trusted_proxy=(wrong,)))


def test_numbers_leave_nothing_behind():
    counts = PeerCounts()
    counts.begin("a")
    counts.begin("a")
    counts.begin(None)
    assert (counts.number("a"), counts.number("b"), counts.number(None)) == (2, 0, 0)
    counts.end("a")
    counts.end("a")
    counts.end(None)
    assert not counts._numbers
