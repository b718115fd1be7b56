"""Errors in the command line's own words: flags for keywords, commands for methods."""

import pytest

from oxillama.cli import main
from oxillama.cli.arguments import with_flags
from tests.models.references import path_of


@pytest.mark.parametrize(("message", "shown"), [
    ("give one (chat_template=...), or use generate()", "give one (--chat-template FILE), or use `oxillama run`"),
    ("no memory for a copy; load with repack=False", "no memory for a copy; load with --no-repack"),
    ('no chat template "rerank": give template=', 'no chat template "rerank": give --template'),
    ("predicts no next token: it is for embed() alone", "predicts no next token: it is for `oxillama embed` alone"),
    ("predicts no next token: diffuse() writes with it", "predicts no next token: `oxillama diffuse` writes with it"),
    ("or accept the loss with allow_requantize", "or accept the loss with --allow-requantize"),
    ("a file that has one (tokenizer_path=...)", "a file that has one (tokenizer_path=...)"),  # no flag is so called
    ("with acceptance='rejection', use mirostat=0", "with --acceptance rejection, use --mirostat 0"),
    ("acceptance='rejection' keeps it", "--acceptance rejection keeps it"),
    ("order is 'x'", "--order is 'x'"),
    ("x.generate() of y=5", "x.generate() of y=5"),
])  # fmt: skip
def test_flags_and_commands(message, shown):
    assert with_flags(message) == shown


def test_a_model_without_a_template_is_no_partner(capsys):
    assert main(["chat", "-m", str(path_of("llama")), "--no-think"]) == 2
    error = capsys.readouterr().err
    assert "--chat-template FILE" in error
    assert "`oxillama run`" in error
    assert "generate()" not in error
    assert "chat_template=" not in error
