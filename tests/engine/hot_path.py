"""Hot path: Python functions that a decode step and a whole call enter. Prints them: python -m tests.engine.hot_path

Counted are functions (code objects) of Python, also those of the standard library and constructors that `dataclasses`
generates, as `sys.setprofile` reports them, and files, without those of generated code. Cython functions are not.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import oxillama as ox
from tests.fakes import core_of

PACKAGE = Path(ox.__file__).parent
GENERATED = "<string>"  # file of functions that `dataclasses` compiles
# The forward pass, which a step is measured without.
MODEL = ("models", "kernels")


class Entered(NamedTuple):
    """Functions that ran, each with how often."""

    calls: dict[CodeType, int]

    @property
    def functions(self) -> list[str]:
        """Each as "file:name", sorted."""
        return sorted(f"{_place(code.co_filename)}:{code.co_qualname}" for code in self.calls)

    @property
    def files(self) -> set[str]:
        return {_place(code.co_filename) for code in self.calls} - {GENERATED}

    def without(self, *parts: str) -> "Entered":
        """Those that are in none of these folders of the package."""
        return Entered({c: n for c, n in self.calls.items() if _place(c.co_filename).split("/")[0] not in parts})


def _place(filename: str) -> str:
    """Path in the package, or else the whole path."""
    path = Path(filename)
    return path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else filename


def entered(run: Callable[[], object]) -> Entered:
    """Functions that `run` enters in this thread, with itself."""
    calls: dict[CodeType, int] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls[frame.f_code] = calls.get(frame.f_code, 0) + 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return Entered(calls)


@contextmanager
def decoding(engine: ox.Engine, n_sequences: int = 1) -> Iterator[Callable[[], None]]:
    """The step of an engine in which so many requests decode greedily."""
    options = {"max_tokens": 400, "temperature": 0.0, "ignore_eos": True}
    streams = [engine.stream([5 + i, 6, 7], **options) for i in range(n_sequences)]  # type: ignore[arg-type]
    try:
        for stream in streams:  # submitted, and the prompt computed
            next(stream)
        yield core_of(engine).step
    finally:
        for stream in streams:
            stream.close()


def steady_step(engine: ox.Engine) -> Entered:
    """Functions outside the model of a decode step of one request, the one of some that entered fewest.

    In others the request gets another KV block, or metrics are published, as they are after some time.
    """
    for _ in range(2):  # what is made once is made, such as the bytes of tokens
        with decoding(engine) as step:
            for _ in range(20):
                step()
    with decoding(engine) as step:
        found = [entered(step).without(*MODEL) for _ in range(40)]
    return min(found, key=lambda one: len(one.calls))


def one_call(engine: ox.Engine) -> Entered:
    """Functions of `generate` for one token, with those of the model: of the median of some calls.

    A token that none of them drew before, or that ends the text, takes another way.
    """
    call = partial(engine.generate, "x", max_tokens=1)
    for _ in range(2):  # what is made once is made
        call()
    return median(entered(call) for _ in range(11))


def median(found: Iterable[Entered]) -> Entered:
    """That with the middle number of functions."""
    ranked = sorted(found, key=lambda one: len(one.calls))
    return ranked[len(ranked) // 2]


def main() -> None:
    engine = ox.load(num_threads=1)
    call = one_call(engine)
    for what, found in (
        ("decode step without the model", steady_step(engine)), ("generate", call),
        ("generate without the model", call.without(*MODEL)),
    ):  # fmt: skip
        print("\n".join(found.functions))
        n = sum(found.calls.values())
        print(f"--- {what}: {len(found.calls)} functions in {len(found.files)} files, {n} calls\n")


if __name__ == "__main__":
    main()
