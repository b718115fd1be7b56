"""The tiers of other machines, compiled for them and run under an emulator; test_tiers.py tests those of this one.

Without a cross compiler and an emulator these tests are skipped, or fail if ``OXILLAMA_NEED_EMULATOR`` is set.
"""

import os
import subprocess

import pytest

from tests.kernels import checkasm

pytestmark = pytest.mark.long  # compiles all of csrc for another machine

MACHINE = "aarch64"
FAULTS = {
    0: "neon: add of 1: wrote -4 bytes from the start of 4",
    1: ": touched memory that isn't its own",
    2: "neon: gemm[F32], 17 x 66, 3 tokens: value 0 is",
    3: "neon: pack[Q4_K] of 16 x 512: byte 70 of 4736 differs",
    4: "neon: attention of 1 queries",
    5: "neon: gemm[IQ4_NL], 15 x 64, 1 tokens: value 0 is",
}


@pytest.fixture(scope="session")
def objects():
    if checkasm.NATIVE == MACHINE:
        pytest.skip("this is such a machine: test_tiers.py runs its tiers")
    pytest.importorskip("setuptools", reason="setup.py knows the flags of each tier")
    missing = checkasm.missing_packages(MACHINE)
    if missing:
        message = f"testing the {MACHINE} tiers here needs the Debian packages {' and '.join(missing)}"
        (pytest.fail if os.environ.get("OXILLAMA_NEED_EMULATOR") else pytest.skip)(message)
    return checkasm.compile_all(checkasm.ROOT / "build" / f"checkasm-{MACHINE}", MACHINE, ["-O2"])


def run(driver, cpu, *tiers):
    command = [checkasm.emulator(MACHINE), "-cpu", cpu, str(driver), *tiers]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize(
    ("cpu", "tiers"),
    [("cortex-a57", ["neon"]), ("neoverse-n1", ["neon_dot"]), ("max", ["neon_i8mm"])],
)
def test_every_slot_of_every_tier(objects, tmp_path, cpu, tiers):
    """A Cortex-A57 is of the base architecture, a Neoverse N1 has dot products; the third CPU has everything. Each tier
    takes the emulator a minute, and so runs once, on the CPU with the fewest instructions; the scalar one, beside which
    they stand, runs in each."""
    done = run(checkasm.link(objects, tmp_path / "checkasm", MACHINE, []), cpu, tiers[0])
    assert done.returncode == 0, done.stderr
    assert list(checkasm.digests(done.stdout)) == tiers


def test_what_is_right_is_the_same_on_this_machine(objects, tmp_path):
    """Tiers have the bits of the scalar one of their machine, and this one has the same on both."""
    here = checkasm.compile_all(checkasm.ROOT / "build" / f"checkasm-{checkasm.NATIVE}", checkasm.NATIVE, ["-O2"])
    native = checkasm.link(here, tmp_path / "native", checkasm.NATIVE, [])
    expected = subprocess.run([native, "scalar", "1"], capture_output=True, text=True, timeout=600)
    done = run(checkasm.link(objects, tmp_path / "checkasm", MACHINE, []), "cortex-a57", "scalar", "1")
    assert done.stdout == expected.stdout != ""


@pytest.mark.parametrize("fault", FAULTS)
def test_the_driver_finds_faults(objects, tmp_path, fault):
    wrong = tmp_path / "faults.o"
    source = checkasm.HERE / "faults" / "faults.c"
    subprocess.run([*checkasm.compiler(MACHINE), f"-DFAULT={fault}", "-c", str(source), "-o", str(wrong)], check=True)
    driver = checkasm.link([*objects, wrong], tmp_path / "checkasm", MACHINE, ["-Wl,--wrap=ox_neon_init"])
    done = run(driver, "cortex-a57", "neon")
    assert done.returncode == 1
    assert FAULTS[fault] in done.stderr
