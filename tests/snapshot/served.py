"""Requests in the midst of being served, to be saved."""

from unittest.mock import patch

from oxillama.config import SamplerConfig
from oxillama.core.options import read_options
from oxillama.sampling import SamplerChain
from tests.fakes import core_of


def after_each(engine, search, owner, name):
    """Snapshots of a search in the turns after a method of `owner` was called; they grow as the search goes on."""
    core, method, found = core_of(engine), getattr(owner, name), []

    def save():
        if search._search.outbox.error is None:
            with patch.object(core, "change", lambda action: action()):  # it is a turn already
                found.append(search.snapshot())

    def called(*args):
        method(*args)
        core.loop.post(save)

    setattr(owner, name, called)
    return found


def options(seed=1, **more):
    given = {"max_tokens": 8, "seed": seed, "ignore_eos": True, "temperature": 0.8} | more
    return read_options("stream", given, SamplerChain.from_config(SamplerConfig.original()))


def say(talk, prompt, **more):
    """The prompt with the answer."""
    return prompt + [token for chunk in talk.stream(prompt, options(**more)) for token in chunk.token_ids]
