"""asv_benchmarks/check.py: what it calls slower, and what it takes for noise."""

import importlib.util

import pytest

from tests.site.pages import ROOT


@pytest.fixture(scope="module")
def check():
    spec = importlib.util.spec_from_file_location("check", ROOT / "asv_benchmarks/check.py")
    module = importlib.util.module_from_spec(spec)
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
