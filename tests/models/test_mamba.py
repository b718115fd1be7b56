"""What metadata say about recurrent layers, what these keep, and what metadata may not say."""

import pytest

from oxillama.errors import LoadError, UnsupportedModelError
from oxillama.gguf import Metadata
from oxillama.kernels.ssm import Scan1, Scan2
from oxillama.models.mamba import SsmSpec, read_ssm, read_taps
from tests.kernels.ssm_layers import floats

BASE = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 60,
    "ssm.state_size": 24,
    "ssm.time_step_rank": 6,
    "ssm.group_count": 3,
}


def metadata(arch, **values):
    """These keys over BASE; a key that is None is left out."""
    keys = {k: v for k, v in {**BASE, **{f"ssm.{k}": v for k, v in values.items()}}.items() if v is not None}
    return Metadata({}).replaced({"general.architecture": arch} | {f"{arch}.{k}": v for k, v in keys.items()})


def test_mamba():
    spec = read_ssm(metadata("mamba", group_count=None, dt_b_c_rms=True), 1)
    assert spec == SsmSpec(4, 60, 24, rank=6, norms=True)
    assert spec.n_convolved == 60
    assert spec.scan_at == 192  # three inputs of 60 channels, up to a multiple of 16
    assert spec.shape.n_values == 192 + Scan1(floats(0, 60, 24), floats(1, 60)).n_values


def test_mamba2():
    spec = read_ssm(metadata("mamba2", dt_b_c_rms=False), 2)
    assert spec == SsmSpec(4, 60, 24, n_heads=6, n_groups=3)
    assert spec.n_convolved == 60 + 2 * 3 * 24
    assert spec.scan_at == 624
    scan = Scan2(floats(0, 6), floats(1, 6), floats(2, 6), head_dim=10, n_state=24, n_groups=3)
    assert spec.shape.n_values == 624 + scan.n_values


def test_a_convolution_without_past_keeps_nothing():
    spec = read_ssm(metadata("mamba", conv_kernel=1), 1)
    assert (spec.scan_at, spec.shape.n_values) == (0, 64 * 24)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("key", ["conv_kernel", "inner_size", "state_size", "time_step_rank"])
@pytest.mark.parametrize("value", [None, 0, -1, 1 << 30, "4", 4.5])
def test_sizes_that_cannot_be(version, key, value):
    with pytest.raises(LoadError, match=rf"jamba\.ssm\.{key}"):
        read_ssm(metadata("jamba", **{key: value}), version)


def test_heads_and_groups_that_do_not_divide():
    with pytest.raises(LoadError, match=r"inner_size is 60, which mamba2\.ssm\.time_step_rank 9 does not divide"):
        read_ssm(metadata("mamba2", time_step_rank=9), 2)
    with pytest.raises(LoadError, match=r"time_step_rank is 6, which mamba2\.ssm\.group_count 4 does not divide"):
        read_ssm(metadata("mamba2", group_count=4), 2)
    for value in (None, 0, 1 << 20):
        with pytest.raises(LoadError, match=r"mamba2\.ssm\.group_count"):
            read_ssm(metadata("mamba2", group_count=value), 2)


@pytest.mark.parametrize(
    "values",
    [
        {"inner_size": 1 << 20, "state_size": 1 << 10},
        {"inner_size": 1 << 18, "state_size": 1 << 8, "time_step_rank": 1 << 18, "group_count": 1},
        {"inner_size": 1 << 20, "conv_kernel": 256, "state_size": 16},
    ],
)
def test_states_that_no_machine_has(values):
    with pytest.raises(LoadError, match=r"mamba2\.ssm\.inner_size \d+, .* values in each layer"):
        read_ssm(metadata("mamba2", **{"time_step_rank": 1, "group_count": 1} | values), 2)


def test_norms_belong_to_the_first_version():
    with pytest.raises(UnsupportedModelError, match=r"mamba2\.ssm\.dt_b_c_rms is True"):
        read_ssm(metadata("mamba2", dt_b_c_rms=True), 2)


def test_taps_of_a_short_convolution():
    for value, good in ((3, True), (1, False), (0, False), (1000, False)):
        m = Metadata({}).replaced({"general.architecture": "lfm2", "lfm2.shortconv.l_cache": value})
        if good:
            assert read_taps(m) == value
        else:
            with pytest.raises(LoadError, match=r"lfm2\.shortconv\.l_cache"):
                read_taps(m)
