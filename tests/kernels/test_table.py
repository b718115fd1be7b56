"""Which tier is in use, and how it is forced."""

import os
import subprocess
import sys

import pytest

from oxillama.cli.machine import cpu_features
from oxillama.errors import ConfigError
from oxillama.kernels import _check, _table, config, show_config


def run(tier, code="import oxillama.kernels._table as t; print(t.tier())"):
    env = {**os.environ, "OXILLAMA_TIER": tier}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("tier", _table.usable_tiers())
def test_any_usable_tier_can_be_forced(tier):
    assert run(tier).stdout.strip() == tier


def test_without_force_the_highest_is_used():
    assert run("").stdout.strip() == _table.detected_tier() == _table.usable_tiers()[-1]


@pytest.mark.parametrize("tier", ["avx1024", "AVX2", " "])
def test_an_unusable_tier_is_an_error_that_lists_the_usable_ones(tier):
    done = run(tier)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    message = f"OXILLAMA_TIER={tier!r}: this build on this machine can use scalar"
    assert last.startswith(f"oxillama.errors.ConfigError: {message}")


def test_tiers_are_ordered_and_scalar_is_always_there():
    compiled, usable = _table.compiled_tiers(), _table.usable_tiers()
    assert compiled[0] == usable[0] == "scalar"
    assert usable == tuple(name for name in compiled if name in usable)  # a CPU may lack one in between
    with pytest.raises(ConfigError, match=r"neon|avx"):
        _check.Tier("avx1024")


def test_the_tiers_of_this_machine_are_those_that_its_features_allow():
    """As the operating system lists them; the baseline's and those that come with them are left out."""
    have = set(cpu_features())
    needed = {
        "scalar": set(),
        "avx2": {"avx2", "fma", "f16c"},
        "avx_vnni": {"avx2", "fma", "f16c", "avx_vnni"},
        "avx512": {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"},
        "amx": {"avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"},
        "neon": {"asimd"},
        "neon_dot": {"asimddp"},
        "neon_i8mm": {"asimddp", "i8mm"},
    }
    if not have:
        pytest.skip("this system lists no features of its CPU")
    needed["amx"] |= needed["avx512"]
    assert set(_table.compiled_tiers()) <= needed.keys()
    assert _table.usable_tiers() == tuple(name for name in _table.compiled_tiers() if needed[name] <= have)


def test_config_tells_what_is_in_use(capsys):
    show_config()
    printed = capsys.readouterr().out
    for key, value in config().items():
        assert key in printed
        assert str(value if isinstance(value, str) else "") in printed
    assert config()["tier_in_use"] == _table.tier()
    assert config()["bf16_products"] is _check.Tier(_table.tier()).has_bf16
    assert config()["threads"] >= 1
