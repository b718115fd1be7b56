"""Scenes of serving for `raised`: one call that is traced, and others that are under way beside it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import oxillama as ox
from oxillama.core.options import read_options
from tests.fakes import assert_idle, core_of, make_engine

DRAWN = {"max_tokens": 6, "seed": 1, "ignore_eos": True}


def ids(found: Any) -> Any:
    return [c.token_ids for c in found] if isinstance(found, list) else found.token_ids


class Serving:
    """A request that is under way, and one that is made beside it.

    call(engine): the one that is made.
    """

    def __init__(self, call: Callable[[Any], Any], fields: dict[str, Any]) -> None:
        self.engine = make_engine(context_size=128, prefill_chunk_size=16, **fields)
        self._call = call
        self._other = self.engine.stream([5, 6, 7] * 6, **DRAWN)
        self._first = next(self._other).token_ids

    def act(self) -> Any:
        return self._call(self.engine)

    def others(self) -> Any:
        return self._first + [t for c in self._other for t in c.token_ids]

    def again(self) -> Any:
        return self.engine.generate([3, 9, 4] * 5, **DRAWN).token_ids

    def check(self) -> None:
        self.engine.metrics_snapshot()
        core, loop = core_of(self.engine), core_of(self.engine).loop
        assert_idle(self.engine)
        assert not core.open, "requests are open"
        assert not core.scheduler.live, "sequences are alive"
        assert loop._owner is None, "the turn is taken"
        assert not loop.background_requests, "guests are left"
        assert not loop.mail, "changes are left"
        assert core.meter._n_live == 0, "the metrics count requests that ended"

    def close(self) -> None:
        self.engine.close()

    @property
    def expected(self) -> tuple[Any, Any, Any]:
        raise NotImplementedError


def generate(engine: Any) -> Any:
    return ids(engine.generate([[5, 6, 7] * 6, [4, 8]], max_tokens=4, seed=2, logprobs=2))


def stopped(engine: Any) -> Any:
    return ids(engine.generate([4, 8, 2], max_tokens=9, seed=3, stop=["a", "the b"], grammar="root ::= [a-h ]*"))


def several(engine: Any) -> Any:
    return ids(engine.generate([7, 7, 3] * 7, n=3, **DRAWN))


def guessed(engine: Any) -> Any:
    return ids(engine.generate([3, 4, 5] * 8, draft="lookup", temperature=0.0, max_tokens=12, adaptive=False))


def beams(engine: Any) -> Any:
    return [b.token_ids for b in engine.beam_search([3, 4, 5] * 6, beam_width=3, max_new_tokens=4)]


def session(engine: Any) -> Any:
    with engine.session() as own:
        own.prefill([5, 6, 7] * 7)
        twin = own.fork()
        own.truncate(18)
        found = own.forward_one(4).tobytes(), twin.forward_one(5).tobytes()
        twin.close()
    return found


def conversation(engine: Any) -> Any:
    talk = engine.conversation()
    options, prompt = read_options("stream", dict(DRAWN), engine.context.factory.default_chain), [3, 4, 5] * 6
    said = [t for c in talk.stream(prompt, options) for t in c.token_ids]
    more = [t for c in talk.stream(prompt + said + [6, 7], options) for t in c.token_ids]
    talk.close()
    return said, more


def half_a_stream(engine: Any) -> Any:
    stream = engine.stream([4, 8, 2] * 6, **DRAWN)
    found = [c.token_ids for c in itertools.islice(stream, 3)]
    stream.close()
    return found


def batch(engine: Any) -> Any:
    return [ids(c) for c in engine.batch([[3, 4], [5] * 20, [6, 7, 8]], max_in_flight=2, **DRAWN)]


def embed(engine: Any) -> Any:
    return engine.embed([[3, 4, 5], [6] * 20]).tobytes()


def coroutines(engine: Any) -> Any:
    async def run() -> Any:
        many = ox.AsyncEngine(engine)
        both = (many.generate([3, 4 + i] * 9, **DRAWN) for i in range(2))
        return ids(await asyncio.wait_for(asyncio.gather(*both), 60))

    return asyncio.run(run())


CALLS = {
    call.__name__.replace("_", " "): call
    for call in (
        generate, stopped, several, guessed, beams, session, conversation, half_a_stream, batch, embed, coroutines,
    )
}  # fmt: skip
# What layers of a model keep: of all tokens, of a window, of states; and so few blocks that sequences are sent back.
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "windows": {"windows": (40, 20)},
    "states": {"n_slots": 9},
    "scarce": {"n_blocks": 8},
}


@cache
def expected(name: str, kind: str) -> tuple[Any, Any, Any]:
    made = Serving(CALLS[name], KINDS[kind])
    found = made.act(), made.others(), made.again()
    made.check()
    made.close()
    return found


def scene(name: str, kind: str) -> Callable[[], Serving]:
    """Makes one, of these names."""
    of = type("Scene", (Serving,), {"expected": expected(name, kind)})
    return partial(of, CALLS[name], KINDS[kind])
