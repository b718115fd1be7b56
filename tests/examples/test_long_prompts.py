"""Snapshots of documents: read once, the same answers, and never one of another text or a damaged file."""

import pytest

import oxillama as ox
from oxillama.examples import long_prompts
from oxillama.examples.long_prompts import ask, document_session


def prefilled(engine):
    return engine.metrics_snapshot().prefill_tokens


def test_a_document_is_computed_once(engine, tmp_path):
    with document_session(engine, "The fox and the hen.", tmp_path) as first:
        answer = ask(engine, first, "Where?", most=8)
        assert ask(engine, first, "Where?", most=8) == answer  # the session is as it was
        position = first.position
    (saved,) = tmp_path.glob("*.snap")
    before = prefilled(engine)
    with document_session(engine, "The fox and the hen.", tmp_path) as again:
        assert prefilled(engine) == before
        assert again.position == position
        assert ask(engine, again, "Where?", most=8) == answer
    assert [*tmp_path.glob("*.snap")] == [saved]


def test_the_answer_is_that_of_the_whole_prompt(engine, tmp_path):
    with document_session(engine, "The fox and the hen.", tmp_path) as session:
        found = ask(engine, session, "Where?", most=8)
    ids = engine.tokenize("The fox and the hen.")
    ids += engine.tokenize("\nQuestion: Where?\nAnswer:", add_special=False)
    whole = engine.generate(ids, max_tokens=8, temperature=0.0, repetition_penalty=1.0)
    assert found == engine.detokenize(whole.token_ids)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:100], lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda _: b""]
)
def test_a_damaged_snapshot_is_written_anew(engine, tmp_path, capsys, damage):
    document_session(engine, "A cow.", tmp_path).close()
    (path,) = tmp_path.glob("*.snap")
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    with document_session(engine, "A cow.", tmp_path) as session:
        assert session.position == len(engine.tokenize("A cow."))
    assert capsys.readouterr().out.startswith("reading again: ")
    document_session(engine, "A cow.", tmp_path).close()
    assert capsys.readouterr().out == ""


def test_it_runs_twice(tmp_path, capsys):
    document = tmp_path / "text.txt"
    document.write_text("The cat sat. " * 10)
    for _ in range(2):
        long_prompts.main([str(document), "Where?", "Why?", "--folder", str(tmp_path / "new/folder")])
    first, *answers, second, third, fourth = capsys.readouterr().out.splitlines()
    assert answers == [third, fourth]
    assert first.split(", ")[1] != second.split(", ")[1] == "0 of them computed"


def test_a_file_that_is_no_text_is_refused_before_a_model_is_loaded(tmp_path):
    document = tmp_path / "text.pdf"
    document.write_bytes(b"%PDF \xff")
    with pytest.raises(ox.ConfigError, match=r"text\.pdf is no text"):
        long_prompts.main([str(document), "-m", "nowhere.gguf", "--folder", str(tmp_path / "new")])
    assert not (tmp_path / "new").exists()
