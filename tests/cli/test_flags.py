"""Flags that settings make."""

import argparse
import json

import pytest

from oxillama._util.settings import Setting, settings_of
from oxillama.cli.arguments import make_parser
from oxillama.cli.flags import LEFT_OUT, add_flags, draft_settings, sampling_settings, text_settings
from oxillama.core.draft_options import DraftOptions
from oxillama.core.options import ServingOptions, TextOptions
from oxillama.sampler_config import SamplerConfig


def helped(settings, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    parser = argparse.ArgumentParser()
    add_flags(parser.add_argument_group("made"), settings)
    return parser.format_help()


def test_a_text_may_have_a_percent_sign(monkeypatch):
    known = [Setting("", "the best 5% of tokens", name=kind, kind=kind) for kind in ("int", "bool", "str")]
    assert helped(known, monkeypatch).count("the best 5% of tokens") == 3


def test_many_choices_are_told_in_the_text(monkeypatch):
    choices = tuple(f"choice_{i}" for i in range(9))
    shown = helped([Setting("", "of these", choices=choices, name="kind", kind="str", default="a")], monkeypatch)
    assert "--kind NAME" in shown
    assert "choice_8" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_lists_have_their_default_in_words():
    (breakers,) = [one for one in sampling_settings() if one.name == "dry_sequence_breakers"]
    assert "default" in breakers.brief


@pytest.mark.parametrize("command", ["run", "chat", "diffuse"])
def test_help_fits_a_terminal(command, monkeypatch, run):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(command, "--help")
    assert max(map(len, out.splitlines())) <= 80


def test_every_command_has_help():
    for action in make_parser(whole=True)._actions:
        for parser in (action.choices or {}).values() if isinstance(action, argparse._SubParsersAction) else ():
            assert parser.format_help()


@pytest.mark.parametrize("flags", [
    ["--acceptance", "rejection"], ["--adaptive"], ["--no-adaptive"], ["--num-speculative", 0], ["--temperature", 0],
    ["--stop-token-ids", 3], ["--include-stop"], ["--draft", "lookup"], ["--details"],
])  # fmt: skip
def test_requests_of_a_batch_say_what_they_want(run, tmp_path, flags):
    request = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once"}}
    (tmp_path / "in.jsonl").write_text(json.dumps(request) + "\n")
    status, _, err = run("batch", tmp_path / "in.jsonl", tmp_path / "out.jsonl", "-t", 1, *flags)
    assert status == 2
    assert f"{flags[0].replace('--no-', '--')} is for rows of a table" in err


@pytest.mark.parametrize(
    "flags", [["--adaptive"], ["--no-adaptive"], ["--num-speculative", 3], ["--acceptance", "match"]]
)
def test_flags_of_drafts_need_a_draft(run, flags):
    status, _, err = run("run", "Once", "-t", 1, "-n", 2, *flags)
    assert status == 2
    assert f"{flags[0].replace('--no-', '--')} is" in err
    assert "but there is no draft" in err


def test_every_option_of_a_text_is_a_flag_or_left_out_with_a_reason():
    """Flags are made of the settings that need no engine: none of the others may be forgotten."""
    kinds = (SamplerConfig, TextOptions, ServingOptions, DraftOptions)
    declared = {name for kind in kinds for name in settings_of(kind)}
    flags = {one.name for one in (*sampling_settings(), *text_settings(), *draft_settings())}
    assert flags | set(LEFT_OUT) == declared
    assert flags & set(LEFT_OUT) == set()
