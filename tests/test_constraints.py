"""Settings that say what a text may be: checked, and kept so that nobody can change them."""

import pytest

from oxillama.config import SamplerConfig
from oxillama.constraints import CONSTRAINTS
from oxillama.errors import ConfigError

VALUES = {"grammar": 'root ::= "a"', "regex": "a+", "choices": ["a", "b"]}


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_one_at_a_time(name):
    assert SamplerConfig(**{name: VALUES[name]}).constraint[0] == name
    for other in set(CONSTRAINTS) - {name}:
        with pytest.raises(ConfigError, match="are both given: a text can follow one of"):
            SamplerConfig(**{name: VALUES[name], other: VALUES[other]})
    assert SamplerConfig().constraint is None


def test_what_is_changed_later_does_not_count():
    choices = ["a"]
    config = SamplerConfig(choices=choices)
    choices.append("b")
    assert config.choices == ("a",)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("grammar", 3, "grammar must be GBNF as a str or None, not 3"),
        ("regex", b"a", "regex must be a pattern as a str or None"),
        ("choices", "yes", "choices must be a list of texts or None, not 'yes'"),
        ("choices", 3, "choices must be a list of texts"),
        ("choices", [], "choices must hold at least one text"),
        ("choices", ["a", 3], r"choices\[1\] must be a str, not 3"),
    ],
    ids=lambda value: None if isinstance(value, dict | list) or len(str(value)) > 40 else str(value),
)
def test_bad_values(field, value, message):
    with pytest.raises(ConfigError, match=message):
        SamplerConfig(**{field: value})
