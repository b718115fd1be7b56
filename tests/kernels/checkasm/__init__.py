"""The driver in C that compares every slot of every tier with the scalar one, for this machine or another."""

import importlib.util
import os
import platform
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[3]
NATIVE = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())


def compiler(machine: str) -> list[str]:
    native = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    return native if machine == NATIVE else [f"{machine}-linux-gnu-gcc"]


def emulator(machine: str) -> str | None:
    return shutil.which(f"qemu-{machine}") or shutil.which(f"qemu-{machine}-static")


def missing_packages(machine: str) -> list[str]:
    """What Debian calls the programs that building and running for another machine needs, and that are not here."""
    needed = {f"gcc-{machine}-linux-gnu": shutil.which(compiler(machine)[0]), "qemu-user": emulator(machine)}
    return [package for package, found in needed.items() if not found]


def setup_py():
    """setup.py as a module: it knows the files and the flags."""
    spec = importlib.util.spec_from_file_location("oxillama_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_all(
    folder: Path, machine: str, extra: list[str], command: list[str] | None = None, tiers: list[str] | None = None
) -> list[Path]:
    """Objects of the kernels and the driver in ``folder``, as far as they are stale; ``extra`` flags come last.

    command: of a compiler, where it isn't the machine's usual one. tiers: beside the scalar one; None: all.
    """
    setup, command = setup_py(), command or compiler(machine)
    folder.mkdir(parents=True, exist_ok=True)

    def compile_one(job: tuple[str, list[str]]) -> Path:
        source, flags = job
        output = folder / (source.replace("/", "_") + ".o")
        flags = [*setup.COMMON, *flags, *extra, "-MMD"]
        if setup.is_stale(output):
            subprocess.run([*command, *flags, "-c", source, "-o", str(output)], check=True, cwd=ROOT)
        return output

    shapes = ["-Wno-missing-field-initializers"]  # the driver's lists of shapes leave out zeros at the end
    driver = [(str(p.relative_to(ROOT)), shapes) for p in sorted(HERE.glob("*.c"))]
    jobs = sorted([*setup.kernel_sources(machine, tiers), *driver], key=lambda job: "/gemm_" not in job[0])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_one, jobs))


def link(objects: list[Path], output: Path, machine: str, extra: list[str], command: list[str] | None = None) -> Path:
    static = [] if machine == NATIVE else ["-static"]  # an emulator finds no libraries
    files = [str(f) for f in objects]
    command = command or compiler(machine)
    subprocess.run([*command, *files, *extra, *static, "-o", str(output), "-lm"], check=True)
    return output


def digests(printed: str) -> dict[str, str]:
    """Digests that the driver prints, by tier, of the results that are right."""
    return dict(line.split() for line in printed.splitlines())
