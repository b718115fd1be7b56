"""Synthetic short stories: a hero, a friend, a plot, and sentences that stay consistent with them."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import NamedTuple

from train_words import (
    ADJECTIVES,
    ANIMALS,
    BOYS,
    CODAS,
    COLOURS,
    FANTASY,
    FEMALE_KINDS,
    FOODS,
    GIRLS,
    HIDING_PLACES,
    HOMES,
    MALE_KINDS,
    MORALS,
    ONSETS,
    PLACES,
    THINGS,
    VOWELS,
    WEATHER,
)


class Plot(NamedTuple):
    """A theme: topics to ask for it, the names of its records' slots, its records, and its beats (paraphrases)."""

    topics: list[str]
    slots: list[str]
    records: list[list[str]]
    beats: list[list[str]]


def read_plots(path: Path) -> list[Plot]:
    """Read blocks of "key: value | value ..." lines; the file's head explains them."""
    plots: list[Plot] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        key, _, rest = line.partition(": ")
        values = ["" if value == "-" else value for value in rest.split(" | ")]
        if line.startswith("["):
            plots.append(Plot([], [], [], []))
        elif key in ("topics", "slots"):
            getattr(plots[-1], key).extend(values)
        elif key in ("record", "beat"):
            getattr(plots[-1], key + "s").append(values)
        elif line and not line.startswith("#"):
            raise ValueError(f"{path.name}: cannot read the line {line!r}")
    return plots


PLOTS = read_plots(Path(__file__).with_name("train_plots.txt"))

OPENINGS = (
    "Once upon a time, there was a {adj} {kind} named {h}.",
    "Once upon a time, there was a {adj} {kind} named {h}.",
    "Once upon a time there lived a {adj} {kind} called {h}.",
    "Once upon a time, {home}, there lived a {adj} {kind} named {h}.",
    "Once upon a time, a {adj} {kind} named {h} lived {home}.",
    "There was once a {adj} {kind} named {h}.",
    "Long ago, {home}, there lived a {adj} {kind} called {h}.",
    "{home} lived a {adj} {kind} named {h}.",
)
HOME_LINES = ("{He} lived {home}.", "{h} lived {home}.", "")
TRAITS = (
    "Everybody in the land knew {him}.", "{He} liked {food} and long walks.", "{He} was very {adj2} too.",
    "{He} always wore a {col2} scarf.", "{He} laughed a lot and liked to sing.", "", "", "",
)  # fmt: skip

TOPICS = (
    "a {kind}", "a {kind}", "a {adj} {kind}", "a {kind} named {h}", "{h}", "{h} the {kind}", "{h} and {f}",
    "a {kind} and a {fkind}", "a {adj} {kind} called {h}", "a {kind} named {h} and a {fkind} named {f}",
)  # fmt: skip


class Story(NamedTuple):
    """A finished story: its text, the slots it was written from, and a topic that asks for it."""

    text: str
    slots: dict[str, str]
    topic: str


def invented_name(r: Random) -> str:
    """A name of two syllables, or sometimes three."""
    syllables = (r.choice(ONSETS) + r.choice(VOWELS) + r.choice(CODAS) for _ in range(2 + (r.random() < 0.2)))
    return "".join(syllables).capitalize()


def fix_articles(text: str) -> str:
    """Turn "a" into "an" before a vowel (not before "unicorn", which starts with a consonant sound)."""
    return re.sub(r"\b([Aa]) (?=[aeiou])(?!uni)", r"\1n ", text)


def person(r: Random, prefix: str) -> dict[str, str]:
    """Slots of one character: name, kind, home and pronouns, in agreement with each other."""
    group = r.choices(("child", "animal", "fantasy"), (4, 4, 3))[0]
    female = r.random() < 0.5
    kind = {"child": "girl" if female else "boy"}.get(group) or r.choice(ANIMALS if group == "animal" else FANTASY)
    female = (female or kind in FEMALE_KINDS) and kind not in MALE_KINDS
    name = r.choice(GIRLS if female else BOYS)
    he, him, his = ("she", "her", "her") if female else ("he", "him", "his")
    slots = {"he": he, "him": him, "his": his, "He": he.title(), "His": his.title(), "kind": kind}
    slots["adj"] = r.choice(ADJECTIVES)
    named = {prefix or "h": name, prefix + "home": r.choice(HOMES[group])}
    return {prefix + key: value for key, value in slots.items()} | named


def draw_slots(r: Random, plot: Plot, hero: str) -> dict[str, str]:
    """All the words that one story needs."""
    slots = person(r, "") | person(r, "f")
    slots["h"] = hero or slots["h"]
    while slots["f"] == slots["h"] or slots["fkind"] == slots["kind"]:
        slots |= person(r, "f")
    slots |= {"thing": r.choice(THINGS), "place": r.choice(PLACES), "hid": r.choice(HIDING_PLACES)}
    slots |= {"food": r.choice(FOODS), "when": r.choice(WEATHER)}
    slots["col"], slots["col2"] = r.sample(COLOURS, 2)
    slots["adj2"] = r.choice([a for a in ADJECTIVES[1:7] if a != slots["adj"]])
    slots["fb"] = f"a {slots['fadj']} {slots['fkind']}"
    slots["fa"] = f"{slots['fb']} named {slots['f']}"
    if plot.records:
        slots |= dict(zip(plot.slots, (text.format_map(slots) for text in r.choice(plot.records)), strict=True))
    slots["col_or_new"] = r.choice(("new", "fine"))
    slots["remedy_i"] = slots.get("remedy", "").replace("my hand", "someone's hand").replace("as you can", "as I can")
    slots["made_the"] = re.sub("^a ", "the ", slots.get("made", ""))
    slots["Noise"] = slots.get("noise", "").capitalize()
    return slots


def finish(sentence: str) -> str:
    """Capitalise a sentence (past an opening quotation mark)."""
    start = 1 if sentence.startswith('"') else 0
    return sentence[:start] + sentence[start : start + 1].upper() + sentence[start + 1 :]


def write_story(r: Random, hero: str = "") -> Story:
    """One story of about 150 to 260 tokens, with a topic that it is a fair answer to; the hero's name may be given."""
    plot = r.choice(PLOTS)
    slots = draw_slots(r, plot, hero)
    opening = r.choice(OPENINGS)
    lines = [opening] + ([] if "{home}" in opening else [r.choice(HOME_LINES)]) + [r.choice(TRAITS)]
    lines += [r.choice(beat) for beat in plot.beats] + [r.choice(MORALS)]
    text = " ".join(finish(line.format_map(slots)) for line in lines if line)
    topics = plot.topics if r.random() < 0.55 else TOPICS
    topic = r.choice([topic for topic in topics if "{h}" in topic or not hero] or TOPICS[-1:])
    return Story(fix_articles(text), slots, fix_articles(topic.format_map(slots)))


if __name__ == "__main__":
    for seed in range(6):
        story = write_story(Random(seed))
        print(f"[{story.topic}]\n{story.text}\n")
