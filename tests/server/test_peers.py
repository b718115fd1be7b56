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
    (("6.6.6.6,",), "10.0.0.1"),  # an empty entry names no address, and a client may have written those before it
    (("6.6.6.6", ""), "10.0.0.1"),
    (("6.6.6.6 ,\t203.0.113.7\t",), "203.0.113.7"),
    (("[::ffff:203.0.113.7]:4711",), "203.0.113.7"),
    (("2001:db8::1%eth0",), "2001:db8::1"),
    (("::ffff:10.0.0.2",), "10.0.0.2"),
    (("6.6.6.6", "::ffff:10.0.0.2"), "6.6.6.6"),
    *[((f"6.6.6.6, {nothing}",), "10.0.0.1") for nothing in (
        "[2001:db8::1", "2001:db8::1]", "[2001:db8::1]x", "[[2001:db8::1]]", "203.0.113.7%eth0", "%eth0", "_hidden",
        '"203.0.113.7"', "for=203.0.113.7", "203.0.113.7;6.6.6.6", "0203.0.113.7", "203.0.113.7\x85", "1", "unix:",
    )],
])  # fmt: skip
def test_the_client_behind_proxies(told, client):
    peers = Peers(("10.0.0.0/8",))
    headers = [(b"x-forwarded-for", value.encode()) for value in told]
    assert peers.client_of("10.0.0.1", headers) == client
    assert peers.client_of("203.0.113.9", headers) == "203.0.113.9"  # whose word counts for nothing
    assert Peers(()).client_of("127.0.0.1", headers) == "127.0.0.1"


@pytest.mark.parametrize("wrong", [
    "proxy.example", "10.0.0.0/33", "10.0.0.1:80", " 10.0.0.1", "10.0.0.1 ", "10", "127.1", "010.0.0.1", "[::1]", "*",
    "10.0.0.0/8,10.0.0.1", "10.0.0.0/-1", "10.0.0.0/+8", "10.0.0.0/ 8", "unix:",
])  # fmt: skip
def test_wrong_proxies_are_refused(engine, wrong):
    with pytest.raises(ConfigError, match="trusted_proxy must be addresses or networks"):
        create_app({"tiny": engine}, ServerConfig(trusted_proxy=(wrong,)))


@pytest.mark.parametrize(("wrong", "right", "host"), [
    ("10.1.2.3/8", "10.0.0.0/8", "10.1.2.3"),
    ("10.1.2.3/255.0.0.0", "10.0.0.0/8", "10.1.2.3"),
    ("0.0.0.1/0", "0.0.0.0/0", "0.0.0.1"),
    ("2001:db8::1/32", "2001:db8::/32", "2001:db8::1"),
    ("::ffff:10.1.2.3/104", "::ffff:a00:0/104", "::ffff:10.1.2.3"),
])  # fmt: skip
def test_networks_with_bits_of_a_host_are_refused_with_what_to_write(wrong, right, host):
    """One address, written so by mistake, would let a whole network say who its clients are."""
    with pytest.raises(ConfigError) as caught:
        Peers((wrong,))
    assert str(caught.value) == (
        f"trusted_proxy {wrong!r} has bits behind its prefix: give {right}, or {host} for that host alone"
    )


@pytest.mark.parametrize("wrong", ["fe80::1%eth0", "fe80::%eth0/10", "fe80::1%eth0/10", "10.0.0.1%eth0"])
def test_zones_are_refused(wrong):
    with pytest.raises(ConfigError, match="has a zone, which connections don't tell"):
        Peers((wrong,))


@pytest.mark.parametrize(("given", "proxies", "others"), [
    ("::ffff:10.0.0.0/104", ("10.0.0.1", "::ffff:10.9.9.9"), ("11.0.0.1", "::1")),
    ("::ffff:10.0.0.1", ("10.0.0.1",), ("10.0.0.2",)),
    ("::ffff:0:0/96", ("10.0.0.1", "203.0.113.7"), ("::1", "2001:db8::1")),
    ("10.0.0.0/255.0.0.0", ("10.0.0.1",), ("11.0.0.1",)),
    ("2001:DB8::/32", ("2001:db8:1::1",), ("2001:db9::1",)),
    ("fe80::/10", ("fe80::1%eth0", "fe80::1"), ("fec0::1",)),
])  # fmt: skip
def test_forms_of_networks(given, proxies, others):
    peers = Peers((given,))
    assert [peers.is_proxy(address) for address in (*proxies, *others)] == [True] * len(proxies) + [False] * len(others)


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
