"""Real JSON schemas, compiled and followed by oxillama, and by llguidance and xgrammar if a Python is given for them.

`python asv_benchmarks/schema_folder.py FOLDER --peer-python /path/to/python --peers llguidance,xgrammar` reads every
JSON file of a folder, or with `--every N` each Nth of them. Each engine has a process of its own. Times are CPU time of
the thread: of compiling each schema once, and of the masks of 16 tokens, drawn at random of those that are allowed,
over 32,000 tokens made of the schemas' own texts. xgrammar has one thread, and prepares masks while it compiles; the
others make them when they are asked for.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

N_TOKENS, N_STEPS = 32_000, 16
ENGINES = ("oxillama", "llguidance", "xgrammar")
Step = Callable[[int], None]  # advances by a token
Followed = tuple[Callable[[], Any], Step]  # the words of the mask of what may come next, uint32
Compiled = Callable[[str], Callable[[], Followed]]


def vocabulary(files: list[Path]) -> list[bytes]:
    """Single bytes, and the words of the schemas that occur most often, with a space, quotes or none before them."""
    words: Counter[str] = Counter()
    for file in files:
        words.update(re.findall(r"[ \"]?[A-Za-z]{2,12}|\d{2,3}|[\]}\",:\[{]{2,4}", file.read_text()[:20_000]))
    texts = [word.encode() for word, _ in words.most_common(N_TOKENS - 257)]
    return [*(bytes((i,)) for i in range(256)), *texts]


def oxillama(tokens: list[bytes]) -> Compiled:
    import numpy as np

    import oxillama as ox

    texts = ox.Vocabulary([*tokens, None], [len(tokens)])
    out = np.zeros((len(tokens) + 32) // 32, np.uint32)

    def compiled(schema: str) -> Callable[[], Followed]:
        grammar = ox.JsonSchemaCompiler.compile(schema, mode="generate")

        def follow() -> Followed:
            state = grammar.state(texts)

            def mask() -> Any:
                state.mask(out)
                return out

            return mask, state.advance

        return follow

    return compiled


def llguidance(tokens: list[bytes]) -> Compiled:
    import numpy as np
    from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper  # type: ignore[import-not-found]

    class Wrapped:
        eos_token_id, bos_token_id, special_token_ids = len(tokens), None, [len(tokens)]

        def __init__(self) -> None:
            self.tokens = [*tokens, b"</s>"]

        def __call__(self, text: str | bytes) -> list[int]:
            return list(text.encode() if isinstance(text, str) else text)

    tokenizer = LLTokenizer(TokenizerWrapper(Wrapped()))

    def compiled(schema: str) -> Callable[[], Followed]:
        matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(schema))
        if matcher.get_error():
            raise ValueError(matcher.get_error())

        def step(token: int) -> None:
            if not matcher.consume_token(token):
                raise ValueError(matcher.get_error())

        return lambda: (lambda: np.frombuffer(matcher.compute_bitmask(), np.uint32), step)

    return compiled


def xgrammar(tokens: list[bytes]) -> Compiled:
    import xgrammar as xg  # type: ignore[import-not-found]

    info = xg.TokenizerInfo([*tokens, b"</s>"], stop_token_ids=[len(tokens)])
    compiler = xg.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    out = xg.allocate_token_bitmask(1, info.vocab_size)
    words = out.numpy().view("uint32")[0]

    def compiled(schema: str) -> Callable[[], Followed]:
        grammar = compiler.compile_json_schema(schema, any_whitespace=False)

        def follow() -> Followed:
            matcher = xg.GrammarMatcher(grammar)

            def mask() -> Any:
                matcher.fill_next_token_bitmask(out)
                return words

            def step(token: int) -> None:
                if not matcher.accept_token(token):
                    raise ValueError(f"the token {token} is not accepted")

            return mask, step

        return follow

    return compiled


def measured(engine: str, files: list[Path]) -> dict[str, Any]:
    """Seconds by schema, of compiling and of each mask; the names of those that were refused."""
    tokens = vocabulary(files)
    compiled = {"oxillama": oxillama, "llguidance": llguidance, "xgrammar": xgrammar}[engine](tokens)
    found: dict[str, Any] = {"compile": {}, "masks": {}, "refused": []}
    with suppress(Exception):
        compiled('{"type": "string", "pattern": "^a$"}')  # the first would wait for imports
    for file in files:
        text = file.read_text()
        start = time.thread_time()
        try:
            follow = compiled(text)
        except Exception:
            follow = None
        found["compile"][file.name] = time.thread_time() - start
        if follow is None:
            found["refused"].append(file.name)
        else:
            found["masks"][file.name] = list(followed(follow(), len(tokens), random.Random(file.name)))
    return found


def followed(state: Followed, end: int, rng: random.Random) -> Iterator[float]:
    """Times of the masks of a random text."""
    import numpy as np

    mask, advance = state
    for _ in range(N_STEPS):
        start = time.thread_time()
        words = mask()
        yield time.thread_time() - start
        allowed = np.flatnonzero(np.unpackbits(np.array(words, np.uint32).view(np.uint8), bitorder="little")[:end])
        if not len(allowed):
            return
        advance(int(rng.choice(allowed)))


def line(label: str, found: dict[str, Any], of: set[str]) -> str:
    """A row of the table: the schemas that are in a set, which all compile, or none of them."""
    times = sorted(t * 1e3 for name, t in found["compile"].items() if name in of)
    masks = sorted(t * 1e6 for name, ts in found["masks"].items() if name in of for t in ts)
    at = [times[int(len(times) * q)] for q in (0.5, 0.9, 0.99)]
    mask = f"{sum(masks) / len(masks):.0f} | {masks[int(len(masks) * 0.99)]:.0f}" if masks else " | "
    milliseconds = " | ".join(f"{t:.2f}" for t in (*at, times[-1]))
    return f"| {label} | {len(times)} | {milliseconds} | {mask} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peer-python", help="a Python that has the peers")
    parser.add_argument("--peers", default="llguidance", help="names of other engines, with commas between")
    parser.add_argument("--every", type=int, default=1, help="take each Nth schema alone")
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    files = sorted(given.folder.glob("*.json"))[:: given.every]
    if not files:
        sys.exit(f"{given.folder} has no JSON files")
    if given.engine:
        print(json.dumps(measured(given.engine, files)))
        return
    peers = given.peers.split(",") if given.peer_python else []
    pythons = {"oxillama": sys.executable} | dict.fromkeys(peers, given.peer_python)
    results = {}
    for engine, python in pythons.items():
        command = [python, __file__, str(given.folder), "--engine", engine, "--every", str(given.every)]
        results[engine] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    print("| | schemas | compile, median ms | p90 | p99 | worst | mask, mean µs | p99 |")
    print("|---|---|---|---|---|---|---|---|")
    names = {file.name for file in files}
    common = names - {name for found in results.values() for name in found["refused"]}
    for engine, found in results.items():
        refused = set(found["refused"])  # a refusal ends early: beside what compiles it would make the median smaller
        for label, of in ((engine, names - refused), (f"{engine}, refused", refused)):
            if of:
                print(line(label, found, of))
    if len(results) > 1 and common:
        for engine, found in results.items():
            print(line(f"{engine}, of those that all take", found, common))


if __name__ == "__main__":
    main()
