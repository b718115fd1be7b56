"""Beginnings of prompts and the order of replicas."""

import json
from collections import Counter

import pytest

from oxillama.ray.prefix import BALANCE, KEY_LENGTH, PROMPT_LENGTH, prompt_of, ranked

SYSTEM = {"role": "system", "content": "You are a fox."}
FIRST = {"role": "user", "content": "Who are you?"}
LATER = [
    FIRST,
    {"role": "assistant", "content": "A fox."},
    {"role": "user", "content": [{"text": "And"}, {"text": "I?"}]},
]


def key(**fields):
    return prompt_of(fields)[1]


def test_turns_of_a_conversation_have_one_key_and_other_conversations_another():
    assert key(messages=[SYSTEM, FIRST]) == key(messages=[SYSTEM, *LATER])
    assert key(messages=[SYSTEM, FIRST]) != key(messages=[SYSTEM, {"role": "user", "content": "What is this?"}])
    assert key(messages=[SYSTEM, FIRST]) != key(messages=[FIRST])
    assert key(system="A", messages=[FIRST]) == key(system="A", messages=LATER) != key(system="B", messages=[FIRST])
    assert key(instructions="A", input="hi") != key(instructions="B", input="hi")


def test_prompts_that_begin_alike_have_one_key():
    shots = "a question and its answer. " * 60
    assert len(shots) > KEY_LENGTH
    assert key(prompt=shots + "one") == key(prompt=shots + "two")
    assert key(prompt="one") != key(prompt="two")
    ids = list(range(KEY_LENGTH))
    assert key(prompt=[*ids, 1]) == key(prompt=[*ids, 2]) != key(prompt=[2, *ids])


def test_a_key_of_the_request_counts_before_its_prompt():
    assert key(prompt="one", prompt_cache_key="k") == key(prompt="two", prompt_cache_key="k") == "k"


def test_the_text_of_a_prompt_is_whole_but_bounded():
    assert prompt_of({"messages": [SYSTEM, *LATER]})[0] == "You are a fox.\nWho are you?\nA fox.\nAndI?"
    text, beginning = prompt_of({"prompt": "a" * 10**6})
    assert (len(text), len(beginning)) == (PROMPT_LENGTH, KEY_LENGTH)


@pytest.mark.parametrize("fields", [
    {}, {"prompt": None}, {"messages": []}, {"messages": {"role": 1}}, {"messages": [1, None, [[[]]]]}, {"input": 3.5},
    {"prompt": {"text": {"content": None}}}, {"prompt_cache_key": 7},
])  # fmt: skip
def test_bodies_of_any_form_are_read(fields):
    """A replica says what is wrong with them."""
    text, beginning = prompt_of(json.loads(json.dumps(fields)))
    assert isinstance(text, str)
    assert isinstance(beginning, str)


NAMES = [f"replica-{i}" for i in range(8)]
IDLE = dict.fromkeys(NAMES, 0)


def test_idle_replicas_have_about_the_same_number_of_keys():
    homes = Counter(ranked(f"key {i}", IDLE)[0] for i in range(4000))
    assert set(homes) == set(NAMES)
    assert max(homes.values()) < 1.2 * min(homes.values()) + 100


def test_a_replica_that_goes_moves_its_own_keys_alone():
    left = dict.fromkeys(NAMES[1:], 0)
    for i in range(500):
        before = ranked(f"key {i}", IDLE)
        assert ranked(f"key {i}", left) == [name for name in before if name != NAMES[0]]


def test_every_replica_is_tried():
    for i in range(50):
        loads = {name: (7 * i + 3 * j * j) % 11 for j, name in enumerate(NAMES)}
        assert sorted(ranked(f"key {i}", loads)) == NAMES


def test_a_beginning_that_all_requests_have_spreads_as_its_load_grows():
    loads = dict(IDLE)
    for n in range(1, 65):
        loads[ranked("the same", loads)[0]] += 1
        assert max(loads.values()) <= BALANCE * n / len(loads) + 1
    home = ranked("the same", IDLE)[0]
    assert loads[home] == max(loads.values())


def test_an_overloaded_home_comes_last():
    home = ranked("k", IDLE)[0]
    assert ranked("k", IDLE | {home: 9})[-1] == home
    assert ranked("k", {home: 9}) == [home]
