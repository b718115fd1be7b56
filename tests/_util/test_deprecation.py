"""Warnings of what is deprecated: where they point to, and what is."""

import warnings
from pathlib import Path

import pytest

import oxillama as ox
from oxillama._util.deprecation import warn_deprecated


def test_a_warning_points_to_the_line_of_the_program():
    with pytest.warns(DeprecationWarning, match="this is old") as caught:
        warn_deprecated("this is old")
    assert (caught[0].filename, caught[0].lineno) == (__file__, line_of('warn_deprecated("this is old")'))


def line_of(text):
    lines = Path(__file__).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.strip() == text)


def test_base_of_snapshots_is_deprecated_and_works_as_before(tmp_path):
    with ox.load(num_threads=1) as engine:
        engine.forward_prefill(engine.tokenize("Once upon a time " * 40), 0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            engine.snapshot(tmp_path / "a")
            engine.snapshot(tmp_path / "b", base=None)
            engine.snapshot(tmp_path / "c", shared=True)
        engine.forward_one(5)
        with pytest.warns(DeprecationWarning, match="base= of snapshots is deprecated: shared=True") as caught:
            engine.snapshot(tmp_path / "d", base=tmp_path / "a")
        assert [one.filename for one in caught] == [__file__]
        with engine.session() as session:
            session.forward_prefill([3, 4], 0)
            session.snapshot(tmp_path / "e")
            with pytest.warns(DeprecationWarning, match="base=") as caught:
                session.snapshot(tmp_path / "f", base=tmp_path / "e")
        assert [one.filename for one in caught] == [__file__]
        assert ox.snapshot.snapshot_info(tmp_path / "d").base == "a"
