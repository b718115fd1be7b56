"""An adapter for each customer: one model in memory, many small changes to it, all in the same steps.

    python -m oxillama.examples.lora_per_customer adapters/ acme="Write a greeting." globex="Write a greeting."

A folder has an adapter for each customer, NAME.gguf or a PEFT folder NAME. One is loaded when its customer first asks,
and those that were not used for longest leave memory. An answer has the bits that it has alone, whatever other
customers ask in the same steps.
"""

import argparse
import asyncio
import sys
from collections import OrderedDict
from pathlib import Path

import oxillama as ox


class Customers:
    """Adapters of a folder, of which at most `most` are in memory."""

    def __init__(self, engine: ox.Engine, folder: Path, most: int = 16) -> None:
        self.engine, self.folder, self.most = engine, folder, most
        self.loaded: OrderedDict[str, None] = OrderedDict()

    def adapter(self, customer: str) -> str:
        """The name under which the engine has a customer's adapter. Raises ConfigError for an unknown customer."""
        if customer not in self.loaded:
            self.engine.load_lora(customer, self._path(customer))
            if len(self.loaded) >= self.most:
                # Requests under way keep the adapter until they end.
                self.engine.unload_lora(self.loaded.popitem(last=False)[0])
            self.loaded[customer] = None
        self.loaded.move_to_end(customer)
        return customer

    def _path(self, customer: str) -> Path:
        """Looked up among the files that are there: a name from outside never becomes a path."""
        found = {path.stem if path.suffix == ".gguf" else path.name: path for path in self.folder.iterdir()}
        if customer not in found:
            raise ox.ConfigError(f"there is no adapter of {customer!r} in {self.folder}")
        return found[customer]


async def answers(engine: ox.Engine, customers: Customers, asked: list[tuple[str, str]]) -> list[ox.Completion]:
    """The answers to (customer, prompt) pairs, computed together."""
    shared = ox.AsyncEngine(engine)

    async def answer(customer: str, prompt: str) -> ox.Completion:
        return await shared.generate(prompt, lora=customers.adapter(customer), max_tokens=40, temperature=0.0)

    return await asyncio.gather(*(answer(customer, prompt) for customer, prompt in asked))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="one model, an adapter for each customer")
    parser.add_argument("folder", type=Path)
    parser.add_argument("asked", nargs="+", metavar="CUSTOMER=PROMPT")
    parser.add_argument("-m", "--model", help="GGUF file of the adapters' model; without it, the one that ships")
    a = parser.parse_args(arguments)
    pairs = [pair.partition("=") for pair in a.asked]
    if wrong := [pair for pair, (_, equals, _) in zip(a.asked, pairs, strict=True) if not equals]:
        parser.error(f"{wrong[0]!r} must be CUSTOMER=PROMPT")
    asked = [(customer, prompt) for customer, _, prompt in pairs]
    with ox.load(a.model) as engine:
        found = asyncio.run(answers(engine, Customers(engine, a.folder), asked))
        for (customer, _), completion in zip(asked, found, strict=True):
            print(f"{customer}: {completion.text}")


if __name__ == "__main__":
    try:
        main()
    except (ox.OxiLlamaError, OSError) as error:  # a file that is missing, or no model
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
