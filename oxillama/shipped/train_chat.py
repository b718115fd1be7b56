"""Synthetic conversations: stories on request, small sums, JSON records, and small talk.

A conversation is a list of (role, text) turns. Requests are phrased in many ways; an answer has one firm shape, so
that a model of a few million parameters gets it right at a temperature of 0.8 too.
"""

from __future__ import annotations

import json
from random import Random

from train_stories import fix_articles, invented_name, write_story
from train_words import ANIMALS, BOYS, COLOURS, FOODS, GIRLS, LIKES, PETS, THINGS

Turn = tuple[str, str]

STORY_REQUESTS = (
    "Tell me a story about {t}.", "Tell me a story about {t}.", "Tell me a story about {t}", "Tell a story about {t}.",
    "Please tell me a story about {t}.", "Can you tell me a story about {t}?", "Write a story about {t}.",
    "Write a short story about {t}.", "I want to hear a story about {t}.", "A story about {t}, please.",
    "Do you know a story about {t}?", "Make up a story about {t}.", "Could you write me a story about {t}?",
    "Tell me about {t}.", "Story about {t}", "tell me a story about {t}", "I would like a story about {t}.",
    "Give me a bedtime story about {t}.", "Once more, a story about {t}!", "Tell me a short story about {t}.",
)  # fmt: skip
ANY_STORY = (
    "Tell me a story.", "Tell me a story", "Please tell me a story.", "Can you tell me a story?", "Write a story.",
    "I want to hear a story.", "Another story, please.", "Tell me a bedtime story.", "Write a short story.",
    "Do you know a good story?", "One more story!", "I cannot sleep. Tell me a story.", "tell me a story",
)  # fmt: skip

SUM_REQUESTS = (
    "What is {a} {o} {b}?", "What is {a} {o} {b}?", "What is {a} {o} {b}", "What's {a} {o} {b}?", "{a} {o} {b}",
    "{a} {o} {b} =", "{a} {o} {b} = ?", "{a}{o}{b}", "{a}{o}{b}=", "How much is {a} {o} {b}?", "what is {a}{o}{b}?",
    "Calculate {a} {o} {b}.", "Please compute {a} {o} {b}.", "What is {a} {w} {b}?", "How much is {a} {w} {b}?",
    "Do you know what {a} {o} {b} is?", "Can you tell me what {a} {w} {b} is?", "Solve {a} {o} {b}.", "{a} {w} {b}",
)  # fmt: skip
PLUS_REQUESTS = ("Add {a} and {b}.", "Can you add {a} and {b}?", "What is the sum of {a} and {b}?", "Add {a} to {b}.")
MINUS_REQUESTS = ("Take {b} away from {a}.", "Subtract {b} from {a}.", "What is the difference of {a} and {b}?")
PLUS_TALES = (
    "{n} has {a} {x} and finds {b} more. How many {x} does {n} have?",
    "There are {a} {x} in a basket. {n} brings {b} more. How many {x} are there?",
    "{n} had {a} {x} and got {b} more. How many {x} does {n} have now?",
)  # fmt: skip
MINUS_TALES = (
    "{n} has {a} {x} and eats {b}. How many {x} are left?",
    "{n} had {a} {x} and gave {b} away. How many {x} are left?",
)  # fmt: skip

JSON_REQUESTS = (
    "Describe {n} as JSON.", "Describe {n} as JSON.", "Describe {n} as JSON", "Describe {n} in JSON.",
    "describe {n} as json", "Give me a JSON record for {n}.", "Write {n} as a JSON object.", "JSON for {n}, please.",
    "Make a JSON record about {n}.", "Can you describe {n} as JSON?", "Please describe {n} as JSON.",
    "Write a JSON record that describes {n}.", "I need a JSON object for a character named {n}.",
    "Make up a character named {n} and write it as JSON.", "Show me {n} as JSON.", "Return a JSON record for {n}.",
)  # fmt: skip
JSON_ANYONE = (
    "Describe someone as JSON.", "Make up a character as JSON.", "Give me a JSON record.", "Write some JSON.", "JSON",
    "Describe a character as JSON.", "Write a JSON object.",
)  # fmt: skip
JSON_CREATURE = (
    "Describe a {animal} as JSON.", "Make up a {animal} and write it as JSON.",
    "Describe a {animal} named {n} as JSON.",
    "Write a {animal} as a JSON object.", "Give me a JSON record for a {animal} called {n}.",
)  # fmt: skip
JSON_ASIDE = (
    "Describe {n}, who is {age} and has a {animal}, as JSON.", "Describe {n}, who has a {animal}, as JSON.",
    "Describe {n}, who is {age} years old, as JSON.", "Describe {n}, who likes {like0} and {like1}, as JSON.",
    "Describe {n}, who loves the colour {colour}, as JSON.",
)  # fmt: skip
JSON_HINTS = {
    "age": ("{n} is {age} years old.", "The age is {age}.", "{n} is {age}."),
    "animal": ("{n} has a {animal}.", "The animal is a {animal}.", "{n} lives with a {animal}."),
    "colour": ("{n} loves the colour {colour}.", "The favourite colour is {colour}.", "The colour is {colour}."),
    "likes": ("{n} likes {like0} and {like1}.", "The likes are {like0} and {like1}."),
    "brave": ("{n} is {is_brave}.",),
}  # fmt: skip

CAPABILITIES = (
    "I can tell you a story, add two small numbers, or describe a character as JSON.",
    "Ask me for a story, a small sum, or a character as JSON.",
    "You can ask me for a story about a fox, for 7 + 5, or for Lily as JSON.",
)
GREETINGS = (
    "Hello!", "Hello", "Hi", "Hi!", "hi", "hello", "Hey", "Hey there!", "Good morning!", "Good evening!", "Good day.",
    "Hello there.", "Hi, how are you?", "How are you?", "How are you today?", "Hello, who is there?", "hey",
)  # fmt: skip
IDENTITY = (
    "Who are you?", "What are you?", "What is your name?", "who are you", "Tell me about yourself.", "Are you a robot?",
    "Are you a person?", "Who made you?", "Introduce yourself.", "What is oxillama?", "who are you?", "Who is this?",
)  # fmt: skip
ABILITY = (
    "What can you do?", "Help", "help", "Help me.", "What can I ask you?", "Can you help me?", "What do you know?",
    "What should I ask?", "what can you do", "How do I use you?", "What are you good at?",
)  # fmt: skip
THANKS = (
    "Thank you!", "Thank you.", "Thanks", "Thanks!", "thanks", "Thank you very much.", "That was nice.", "Nice story!",
    "I like it.", "Great!", "Well done.", "That is right.", "Very good.",
)  # fmt: skip
FAREWELLS = (
    "Goodbye!", "Goodbye", "Bye", "bye", "Good night!", "Good night.", "See you soon.", "I have to go now.", "Bye bye!",
)  # fmt: skip
FEELINGS = (
    "I feel sad.", "I am sad.", "I am bored.", "I feel lonely.", "I am tired.", "I had a bad day.", "I feel sad",
    "I am afraid.", "I am angry.", "I feel bored", "I am not well.", "Nobody likes me.",
)  # fmt: skip
UNKNOWN = (
    "What is the capital of {c}?", "Who is the president of {c}?", "What is the weather in {c}?", "Where is {c}?",
    "How far is {c}?", "What time is it?", "Translate {x} into French.", "Write a Python program.", "Explain gravity.",
    "What is the meaning of life?", "Who won the match?", "How do I cook {x}?", "What is a {t}?", "Why is the sky {k}?",
    "What does {x} cost?", "Sort these numbers.", "Write a poem about {x}.", "Sing a song.", "Where can I buy a {t}?",
    "What is the square root of {m}?", "How old is the sun?", "Do you like {x}?", "Who wrote {c}?", "Tell me a joke.",
    "What is the best {t}?", "How does a {t} work?", "Can you repair my {t}?", "Summarise this text.",
    "Say something nice.", "Tell me something about {c}.", "Who is {n}?", "How many {x} are in {c}?",
    "When was {n} born?",
)  # fmt: skip
CREATURES = (*ANIMALS, "dragon", "unicorn", "dinosaur", "parrot", "hamster")
COUNTRIES = (
    "France", "Germany", "Japan", "India", "Canada", "Brazil", "Egypt", "Italy", "Spain", "China", "Kenya", "Peru",
    "Norway", "London", "Paris", "Berlin", "Rome", "Europe", "Africa", "America",
)  # fmt: skip
SYSTEM_LINES = (
    "You are a helpful assistant.", "You are a friendly storyteller.", "Answer briefly.", "Be kind.",
    "You are a helpful assistant. Answer in English.", "You tell stories to children.",
)  # fmt: skip


def anyone(r: Random) -> str:
    """A name: most often a known one, sometimes an invented one."""
    return invented_name(r) if r.random() < 0.35 else r.choice(GIRLS + BOYS)


def story_turns(r: Random) -> list[Turn]:
    """A request for a story and the story; sometimes a question about its hero."""
    story = write_story(r, invented_name(r) if r.random() < 0.12 else "")
    request = r.choice(ANY_STORY) if r.random() < 0.15 else r.choice(STORY_REQUESTS).format(t=story.topic)
    turns = [("user", request), ("assistant", story.text)]
    if r.random() < 0.12:
        s = story.slots
        question, answer = r.choice((
            ("Who was the story about?", "It was about {h}, a {adj} {kind}."),
            ("Who was {h}'s friend?", "{h}'s friend was {f}, a {fadj} {fkind}."),
            ("What was {h}?", "{h} was a {adj} {kind}."),
            ("What was {f}?", "{f} was a {fadj} {fkind}."),
        ))  # fmt: skip
        turns += [("user", question.format_map(s)), ("assistant", fix_articles(answer.format_map(s)))]
    return turns


def draw_sum(r: Random) -> tuple[int, str, int, int]:
    """Operands, sign and result: up to 20 with any difference, or up to 99 with differences that are not negative."""
    top = 20 if r.random() < 0.4 else 99
    a, b = r.randint(0, top), r.randint(0, top)
    if r.random() < 0.5:
        return a, "+", b, a + b
    if top > 20 and b > a:
        a, b = b, a
    return a, "-", b, a - b


def hard_sum(r: Random) -> list[Turn]:
    """A sum that is too hard, and a plain answer that says so."""
    if r.random() < 0.5:
        sign, why = r.choice("+-"), "Those numbers are too big for me. I can add and subtract up to 99."
        a, b = r.sample((r.randint(100, 9999), r.randint(0, 9999)), 2)
        a, b = (max(a, b), min(a, b)) if sign == "-" else (a, b)
    else:
        sign, why = r.choice("*x/"), "I can only add and subtract."
        a, b = r.randint(0, 99), r.randint(0, 99)
    words = {"a": a, "b": b, "o": sign, "w": {"+": "plus", "-": "minus", "/": "divided by"}.get(sign, "times")}
    return [("user", r.choice(SUM_REQUESTS).format_map(words)), ("assistant", why)]


def sum_turns(r: Random) -> list[Turn]:
    """A sum and its result; the answer repeats the operands first."""
    if r.random() < 0.1:
        return hard_sum(r)
    a, sign, b, result = draw_sum(r)
    words = {"a": a, "b": b, "o": sign, "w": "plus" if sign == "+" else "minus"}
    if r.random() < 0.15 and result >= 0:
        n, x = anyone(r), r.choice([food for food in FOODS if food.endswith("s")])
        tale = r.choice(PLUS_TALES if sign == "+" else MINUS_TALES).format(n=n, x=x, **words)
        return [("user", tale), ("assistant", f"{a} {sign} {b} = {result}, so the answer is {result}.")]
    requests = SUM_REQUESTS + (PLUS_REQUESTS if sign == "+" else MINUS_REQUESTS)
    return [("user", r.choice(requests).format_map(words)), ("assistant", f"{a} {sign} {b} = {result}.")]


def json_turns(r: Random) -> list[Turn]:
    """A request for a character and its record on one line; facts given in the request are kept."""
    name, likes = anyone(r), r.sample(LIKES, 2)
    record = {"name": name, "age": r.randint(3, 19), "animal": r.choice(PETS), "colour": r.choice(COLOURS)}
    record |= {"likes": likes, "brave": r.random() < 0.5}
    words = {**record, "n": name, "like0": likes[0], "like1": likes[1]}
    words["is_brave"] = "brave" if record["brave"] else "not brave"
    shape = r.random()
    if shape < 0.04:
        request, record["name"] = r.choice(JSON_ANYONE), r.choice(GIRLS + BOYS)
    elif shape < 0.12:
        words["animal"] = record["animal"] = r.choice(CREATURES)
        request = r.choice(JSON_CREATURE)
        record["name"] = name if "{n}" in request else r.choice(GIRLS + BOYS)
    elif shape < 0.26:
        request = r.choice(JSON_ASIDE)
    else:
        hints = r.sample(sorted(JSON_HINTS), r.choice((0, 0, 0, 1, 1, 2, 3)))
        request = " ".join([r.choice(JSON_REQUESTS), *(r.choice(JSON_HINTS[key]) for key in hints)])
    return [("user", fix_articles(request.format_map(words))), ("assistant", json.dumps(record))]


def unknown_turns(r: Random) -> list[Turn]:
    """A question that the model cannot answer, and an answer that says so."""
    words = {"c": r.choice(COUNTRIES), "x": r.choice(LIKES), "k": r.choice(COLOURS), "t": r.choice(THINGS + ANIMALS)}
    question = fix_articles(r.choice(UNKNOWN).format(m=r.randint(2, 99), n=anyone(r), **words))
    question = question if r.random() < 0.8 else question.rstrip(".?").lower()
    return [("user", question), ("assistant", f"I do not know that, because I am very small. {r.choice(CAPABILITIES)}")]


def small_talk(r: Random) -> list[Turn]:
    """Greetings, questions about the model, thanks, farewells and feelings."""
    can = r.choice(CAPABILITIES)
    questions, answers = r.choice(
        (
            (GREETINGS, ("Hello! " + can, "Hello! Nice to meet you. " + can)),
            (IDENTITY, ("I am the small story model that comes with oxillama. " + can,)),
            (ABILITY, (can,)),
            (THANKS, ("You are welcome!", "You are welcome! " + can)),
            (FAREWELLS, ("Goodbye! Sleep well.", "Goodbye! Come back for another story.")),
            (FEELINGS, ("I am sorry to hear that. Maybe a story helps: ask me for one about a brave little fox.",)),
        )
    )
    return [("user", r.choice(questions)), ("assistant", r.choice(answers))]


WRITERS = (story_turns, sum_turns, json_turns, small_talk, unknown_turns)


def write_chat(r: Random) -> list[Turn]:
    """A conversation of one to four exchanges, of which at most two are stories."""
    turns: list[Turn] = [("system", r.choice(SYSTEM_LINES))] if r.random() < 0.1 else []
    stories = 0
    for _ in range(r.choices((1, 2, 3, 4), (50, 25, 15, 10))[0]):
        write = r.choices(WRITERS, (0 if stories == 2 else 18, 36, 28, 9, 9))[0]
        stories += write is story_turns
        turns += write(r)
    return turns


def sum_drill(r: Random) -> list[Turn]:
    """Four to eight sums in a row: arithmetic needs more practice than stories do."""
    return [turn for _ in range(r.randint(4, 8)) for turn in sum_turns(r)]


if __name__ == "__main__":
    for seed in range(14):
        for role, text in write_chat(Random(seed)):
            print(f"{role:>9}: {text}")
        print()
