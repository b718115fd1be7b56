"""asv_benchmarks/check.py: what it calls slower, and what it takes for noise."""

import importlib.util

import pytest

from tests.site.pages import ROOT


@pytest.fixture(scope="module")
def check():
    spec = importlib.util.spec_from_file_location("check", ROOT / "asv_benchmarks/check.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "asv_benchmarks")
        spec.loader.exec_module(module)
    return module


NOISE = [0.8, 0.9, 0.95, 0.98, 1.0, 1.0, 1.02, 1.05, 1.1, 1.25, 1.6]


@pytest.mark.parametrize(("factor", "wanted"), [(1, ""), (1.04, ""), (1.5, "slower"), (0.6, "faster")])
def test_a_change_is_told_from_noise(check, factor, wanted):
    assert check.verdict([factor * x for x in NOISE], 0.05) == wanted


def test_a_median_above_the_threshold_can_be_noise(check):
    ratios = [0.8, 0.9, 0.95, 1.0, 1.0, 1.1, 1.1, 1.2, 1.2, 1.3, 1.3]
    assert sorted(ratios)[5] > 1.05
    assert check.verdict(ratios, 0.05) == ""


@pytest.mark.parametrize(("n", "place"), [(6, 1), (11, 2), (15, 4), (20, 6)])
def test_the_interval_of_the_median_is_that_of_the_tables(check, n, place):
    assert (
        check.least_median([float(i) for i in range(1, n + 1)]) == place
    )  # Conover, Practical Nonparametric Statistics


def test_few_ratios_prove_nothing(check):
    assert check.verdict([9.0] * 5, 0.05) == ""
    assert check.verdict([9.0] * 6, 0.05) == "slower"


def test_parameters_are_read_as_asv_reads_them(check):
    assert check._columns((1, 2)) == [(1, 2)]
    assert check._columns(((1, 2), ("a", "b"))) == [(1, 2), ("a", "b")]
    assert check._columns(()) == []


class FakeSide:
    """A side whose benchmarks take what a table says, or say why they can't run."""

    def __init__(self, found):
        self.names, self.found = list(found), list(found.values())

    def measure(self, i):
        return self.found[i]

    def close(self):
        pass


@pytest.mark.parametrize(
    ("base", "head", "wanted", "said"),
    [
        ({"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 0.5}, 0, "0 slower of 2; 0 could not be measured"),
        ({"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 1.5}, 1, "1 slower of 2; 0 could not be measured"),
        ({"a": 1.0, "b": 1.0}, {"b": "AttributeError: x", "a": 1.5}, 1, "1 slower of 1; 1 could not be measured"),
        ({"a": 1.0, "b": 1.0}, {"b": "AttributeError: x", "a": 1.0}, 0, "0 slower of 1; 1 could not be measured"),
        ({"a": 1.0}, {"a": "AttributeError: x"}, 2, "0 slower of 0; 1 could not be measured"),
        ({"a": "AttributeError: x"}, {"a": 1.0}, 2, "0 slower of 0; 1 could not be measured"),
        ({"a": 1.0}, {"b": 1.0}, 2, "no benchmark has '.' in its name"),
    ],
)
def test_the_exit_status_says_what_was_found(check, monkeypatch, capsys, base, head, wanted, said):
    monkeypatch.setattr(check, "tree_of", {"base": base, "head": head}.__getitem__)
    monkeypatch.setattr(check, "Side", lambda found, pattern: FakeSide(found))
    with pytest.raises(SystemExit) as ended:
        check.main(["base", "head", "--bench", "."])
    assert ended.value.code == wanted
    assert capsys.readouterr().out.splitlines()[-1] == said


def test_a_build_that_fails_is_not_called_slower(check, monkeypatch, tmp_path, capsys):
    (tmp_path / "setup.py").write_text("raise SystemExit(1)")
    monkeypatch.setattr(check, "tree_of", lambda revision: check.built(tmp_path))
    with pytest.raises(SystemExit) as ended:
        check.main(["base"])
    assert ended.value.code == 2
    assert "setup.py" in capsys.readouterr().err


def test_a_name_of_nothing_is_not_called_slower(check, capsys):
    with pytest.raises(SystemExit) as ended:
        check.main(["no-such-commit"])
    assert ended.value.code == 2
    assert "no-such-commit" in capsys.readouterr().err
