"""Every compiler at hand, at every level, makes kernels of the same bits, and fuses nothing but `fma`."""

import re
import shutil
import subprocess

import pytest

from tests.kernels import checkasm

pytest.importorskip("setuptools", reason="setup.py knows the flags of each tier")

COMPILERS = [name for name in ("gcc", "clang", "musl-gcc") if shutil.which(name)]
# Levels other than those of a release. With another C library under one compiler, the scalar tier shows what differs;
# clang takes minutes for AVX-512.
LEVELS = {"gcc": ("-O1",), "clang": ("-O2",), "musl-gcc": ("-O3",)}
TIERS = {"musl-gcc": (), "clang": ("avx2", "neon")}
FUSED = re.compile(r"\bvfn?m(?:add|sub)|\bfn?m(?:add|sub|la|ls)\b")

# Sums of products that a compiler may fuse: of floats, of doubles, of a loop that it turns into vectors.
UNFUSED = """
float of_floats(float a, float b, float c) { return a * b + c; }
double of_doubles(double a, double b, double c) { return c - a * b; }
void of_rows(float *restrict y, const float *restrict a, const float *restrict b, int n)
{
    for (int i = 0; i < n; i++)
        y[i] += a[i] * b[i];
}
"""


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """Digests of the usual compiler's kernels, at the level of a release."""
    return digests_of(tmp_path_factory.mktemp("reference"), None, "-O3")


def digests_of(folder, compiler, level):
    command = None if compiler is None else [compiler]
    known = checkasm.setup_py().compiled_tiers(checkasm.NATIVE)
    tiers = [tier for tier in known if tier in TIERS[compiler]] if compiler in TIERS else None
    objects = checkasm.compile_all(folder, checkasm.NATIVE, [level, "-Wno-unknown-warning-option"], command, tiers)
    driver = checkasm.link(objects, folder / "checkasm", checkasm.NATIVE, [], command)
    done = subprocess.run([driver], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    return checkasm.digests(done.stdout)


@pytest.mark.long
@pytest.mark.parametrize(("compiler", "level"), [(c, level) for c in COMPILERS for level in LEVELS[c]])
def test_kernels_have_the_same_bits(tmp_path, reference, compiler, level):
    """Each tier against its scalar one, and what that gives against what another compiler's gives."""
    found = digests_of(tmp_path, compiler, level)
    assert found == {tier: reference[tier] for tier in found}
    assert "scalar" in found


def mnemonics(compiler, flags, output):
    command = [compiler, *flags, "-x", "c", "-", "-S", "-o", str(output)]
    subprocess.run(command, input=UNFUSED.encode(), check=True, capture_output=True)
    return FUSED.findall(output.read_text())


@pytest.mark.parametrize("compiler", COMPILERS)
def test_no_compiler_fuses_by_itself(tmp_path, compiler):
    setup = checkasm.setup_py()
    for tier in setup.compiled_tiers(checkasm.NATIVE):
        flags = [f for f in setup.COMMON if not f.startswith("-W")] + setup.TIERS[tier][1]
        assert mnemonics(compiler, flags, tmp_path / "unfused.s") == [], tier
    fused = [f for f in flags if f != "-ffp-contract=off"]
    assert mnemonics(compiler, [*fused, "-ffp-contract=fast"], tmp_path / "fused.s"), "the check sees nothing"
