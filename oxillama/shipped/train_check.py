"""Measure a trained model: how many sums are right, how many records are valid and faithful, and what stories it tells.

    python oxillama/shipped/train_check.py [default.gguf [temperature=0.7 ...]]

Every request is asked once greedily and once with the sampling defaults of the file, or those that are given as
KEY=VALUE after it. ``check`` takes any function from requests to answers, so that another runtime can be measured
in the same way.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from train_chat import PETS, anyone
from train_words import BOYS, COLOURS, GIRLS

if TYPE_CHECKING:
    from oxillama import Engine, SamplerConfig

Ask = Callable[[list[str]], list[str]]
FIELDS = {"name": str, "age": int, "animal": str, "colour": str, "likes": list, "brave": bool}


def share(good: int, total: int) -> str:
    """A fraction as a percentage."""
    return f"{good}/{total} = {100 * good / total:.1f} %"


def check_sums(ask: Ask, cases: list[tuple[int, str, int]]) -> str:
    """The share of "What is a + b?" that is answered with exactly "a + b = c."."""
    answers = ask([f"What is {a} {sign} {b}?" for a, sign, b in cases])
    right = 0
    for (a, sign, b), answer in zip(cases, answers, strict=True):
        right += answer.strip() == f"{a} {sign} {b} = {a + b if sign == '+' else a - b}."
    return share(right, len(cases))


def is_record(answer: str, wanted: dict[str, object]) -> bool:
    """Whether an answer is one JSON object with the six fields, each of its type, and with the wanted values."""
    try:
        record = json.loads(answer)
    except ValueError:
        return False
    if not isinstance(record, dict) or list(record) != list(FIELDS):
        return False
    typed = all(type(record[key]) is kind for key, kind in FIELDS.items())
    return typed and all(record[key] == value for key, value in wanted.items())


def record_requests(r: Random, names: list[str]) -> list[tuple[str, dict[str, object]]]:
    """Requests for each name: a plain one and one that fixes two fields, with what must be found in the record."""
    requests: list[tuple[str, dict[str, object]]] = []
    for name in names:
        age, animal, colour = r.randint(3, 19), r.choice(PETS), r.choice(COLOURS)
        requests.append((f"Describe {name} as JSON.", {"name": name}))
        hint = f"Describe {name} as JSON. {name} is {age} years old. The favourite colour is {colour}."
        requests.append((hint, {"name": name, "age": age, "colour": colour}))
        article = "an" if animal[0] in "aeiou" else "a"
        hint = f"Describe {name}, who is {age} and has {article} {animal}, as JSON."
        requests.append((hint, {"name": name, "age": age, "animal": animal}))
    return requests


def check_records(ask: Ask, names: list[str]) -> str:
    """The share of records that are valid and say what the request said."""
    requests = record_requests(Random(7), names)
    answers = ask([request for request, _ in requests])
    return share(sum(is_record(a, wanted) for a, (_, wanted) in zip(answers, requests, strict=True)), len(requests))


def check_topics(ask: Ask, topics: list[tuple[str, list[str]]]) -> str:
    """The share of stories that mention every word of their topic and end with a whole sentence."""
    stories = ask([f"Tell me a story about {topic}." for topic, _ in topics])
    good = 0
    for story, (_, words) in zip(stories, topics, strict=True):
        good += all(re.search(rf"\b{word}\b", story) is not None for word in words) and story.rstrip()[-1:] in '."!?'
    return share(good, len(topics))


def check(ask: Ask) -> dict[str, str]:
    """All measurements."""
    r = Random(3)
    small = [(a, "+", b) for a in range(21) for b in range(21)] + [(a, "-", b) for a in range(21) for b in range(21)]
    pairs = [(r.randint(0, 99), r.randint(0, 99)) for _ in range(300)]
    known = r.sample(GIRLS + BOYS, 34)
    invented = sorted({anyone(r) for _ in range(120)} - set(GIRLS + BOYS))[:34]
    kinds = ("fox", "dragon", "robot", "princess", "owl", "girl", "boy", "turtle", "wizard", "penguin")
    topics = [(f"a {kind} named {name}", [kind, name]) for kind in kinds for name in ("Rosa", "Max")]
    things = ("kite", "key", "drum", "bell", "shoe")
    topics += [(f"a {colour} {thing}", [colour, thing]) for colour in ("red", "blue") for thing in things]
    return {
        "sums and differences of 0..20": check_sums(ask, small),
        "sums of 0..99": check_sums(ask, [(a, "+", b) for a, b in pairs]),
        "differences of 0..99": check_sums(ask, [(max(pair), "-", min(pair)) for pair in pairs]),
        "records of known names": check_records(ask, known),
        "records of new names": check_records(ask, invented),
        "stories on their topic": check_topics(ask, topics),
    }


def repeats(engine: Engine, sampler: SamplerConfig) -> str:
    """The share of runs of six tokens, in stories, that occurred before in the same story; and how many stories end."""
    begun = [
        "Once upon a time",
        "The little fox",
        "One day, a girl named Rosa",
        "In a small village",
        "Max and the owl",
    ]
    stories = [story for text in begun for story in engine.generate(text, n=8, max_tokens=400, sampler=sampler)]
    runs = [[tuple(s.token_ids[i : i + 6]) for i in range(len(s.token_ids) - 5)] for s in stories]
    again = share(sum(len(r) - len(set(r)) for r in runs), sum(map(len, runs)))
    return f"{again}; stories that end: {share(sum(s.finish_reason == 'stop' for s in stories), len(stories))}"


def main() -> None:
    """Measure a GGUF file with oxillama itself."""
    import oxillama

    path = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).with_name("default.gguf")
    engine = oxillama.load(path)
    given = {key: float(value) for key, _, value in (option.partition("=") for option in sys.argv[2:])}
    sampled = replace(engine.sampling_defaults, seed=1, **given)
    print(f"sampled: runs of six tokens that were in the story before: {repeats(engine, sampled)}")
    for label, options in (("greedy", {"temperature": 0.0}), ("sampled", {"sampler": sampled})):

        def ask(requests: list[str], options: dict[str, Any] = options) -> list[str]:
            chats = [engine.chat_tokens([{"role": "user", "content": request}]) for request in requests]
            return [answer.text for answer in engine.generate(chats, max_tokens=400, **options)]

        for name, result in check(ask).items():
            print(f"{label}: {name}: {result}")
    print(engine.generate("Once upon a time", max_tokens=400, sampler=sampled))


if __name__ == "__main__":
    main()
