"""Peers: addresses that connections come from, and those that requests come from behind trusted proxies."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from oxillama.errors import ConfigError

__all__ = ["PeerCounts", "Peers", "peer_name"]

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
MOST_FORWARDED = 64  # entries of a header that are looked at
MAPPED = 96  # bits of IPv6 in front of an address of IPv4
_BRACKETED = re.compile(r"\[([^\[\]]*)\](?::[0-9]*)?")


class Peers:
    """Addresses that stand for one client each: neither those of this machine nor those of trusted proxies."""

    def __init__(self, trusted: tuple[str, ...]) -> None:
        """trusted: addresses and networks of proxies. Raises ConfigError for what is none."""
        self._trusted = [_network(given) for given in trusted]
        self.counted_as = lru_cache(4096)(self._counted_as)

    def is_proxy(self, address: str) -> bool:
        """Whether an address is that of a trusted proxy; the peer of a Unix socket has none, and is no proxy."""
        found = _address(address)
        return found is not None and any(found in network for network in self._trusted)

    def _counted_as(self, address: str) -> str | None:
        """The name under which the limits of one client count an address; None for one that many clients may have."""
        found = _address(address)
        if found is None or found.is_loopback or self.is_proxy(address):
            return None
        return peer_name(address)

    def client_of(self, peer: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """The address that a request comes from: the peer's, or what trusted proxies say in X-Forwarded-For.

        Each proxy adds the address that it sees at the end, so that the last one that is no trusted proxy's is the
        client's; those before it are what the client wrote, and count for nothing. At an entry that is no
        address, also an empty one, it ends: the proxy that wrote it stands for its clients.
        """
        if not self._trusted or not self.is_proxy(peer):
            return peer
        client = peer
        told = ",".join(value.decode("latin-1") for name, value in headers if name == b"x-forwarded-for")
        for given in reversed(told.split(",")[-MOST_FORWARDED:]):
            found = _address(_without_port(given.strip(" \t")))
            if found is None:
                break
            client = str(found)
            if not self.is_proxy(client):
                break
        return client


class PeerCounts:
    """Numbers by what addresses are counted as; of None there is none."""

    def __init__(self) -> None:
        self._numbers: Counter[str] = Counter()

    def begin(self, peer: str | None) -> None:
        """Counts a connection of a peer."""
        if peer is not None:
            self._numbers[peer] += 1

    def number(self, peer: str | None) -> int:
        """Number of connections of the peer."""
        return 0 if peer is None else self._numbers[peer]

    def end(self, peer: str | None) -> None:
        """Forgets a connection of a peer."""
        if peer is not None:
            self._numbers[peer] -= 1
            if not self._numbers[peer]:
                del self._numbers[peer]


def peer_name(address: str) -> str:
    """The name of the host that has an address; of what is no address, as the name of a test's client, itself.

    Of IPv6 it is the network of 64 bits, of which each host has all addresses (RFC 4291, section 2.5.1).
    """
    found = _address(address)
    if found is None:
        return address
    plain = found.version == 4 or found.is_loopback
    return str(found if plain else ipaddress.ip_network((int(found), 64), strict=False))


def _network(given: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """A network of proxies; one of IPv4 addresses as IPv6 writes them is that of IPv4, as addresses are."""
    if "%" in given:  # sockets don't tell the zone of a peer
        raise ConfigError(f"trusted_proxy {given!r:.60} has a zone, which connections don't tell: leave it out")
    try:
        found = ipaddress.ip_network(given, strict=False)
    except ValueError:
        raise ConfigError(f"trusted_proxy must be addresses or networks as 10.0.0.0/8, not {given!r:.60}") from None
    address = given.partition("/")[0]
    if ipaddress.ip_address(address) != found.network_address:
        text = f"trusted_proxy {given!r:.60} has bits behind its prefix: give {found}, or {address} for that host alone"
        raise ConfigError(text)
    mapped = getattr(found.network_address, "ipv4_mapped", None)
    if mapped is not None and found.prefixlen >= MAPPED:
        return ipaddress.ip_network((int(mapped), found.prefixlen - MAPPED))
    return found


def _address(given: str) -> Address | None:
    """An address without its zone, as IPv4 where IPv6 writes one of IPv4; None of any other text."""
    try:
        found = ipaddress.ip_address(given)
    except ValueError:
        return None
    if found.version == 4:
        return found
    return found.ipv4_mapped or ipaddress.IPv6Address(int(found))


def _without_port(given: str) -> str:
    """An address without the port that some proxies add, and the brackets around one of IPv6."""
    bracketed = _BRACKETED.fullmatch(given)
    if bracketed is not None:
        return bracketed[1]
    return given.partition(":")[0] if given.count(":") == 1 else given
