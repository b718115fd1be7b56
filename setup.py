"""Build of the C kernels and the Cython modules; everything else about the package stands in pyproject.toml.

csrc/ is compiled to plain objects, one set of flags per folder (folder = CPU tier), and linked once, into
``oxillama.kernels._table``; the other modules reach the kernels through the table that it hands out. Objects are kept
and rebuilt only when their source or a header changed, so that a change to one C file costs seconds.
"""

import hashlib
import os
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
MACHINE = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())

# Contraction off: a*b+c is fused where a kernel says so and nowhere else, whatever the compiler.
COMMON = [
    "-std=c11",
    "-O3",
    "-g0",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-strict-aliasing",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Werror=implicit-function-declaration",  # a tier whose vocabulary lacks a word must not wait for the linker
]
# For build_ext --sanitize and --sanitize-threads. -O1 shows the same errors as -O3, which takes minutes with a check at
# every access. The two checks left out find nothing that the address sanitiser doesn't, and with them and the places of
# variables (-g) the matrix kernels take ten times as long to compile: minutes each.
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize=null,object-size", "-fno-sanitize-recover=all", "-O1", "-g1"]
SANITIZE_THREADS = ["-fsanitize=thread", "-O1", "-g1"]
BASELINE = {"x86_64": ["-march=x86-64-v2"], "aarch64": ["-march=armv8-a"]}
# What ox_cpu.c tests for, and nothing that it doesn't.
AVX2 = [*BASELINE["x86_64"], "-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mprefer-vector-width=512"]
# folder -> (the machine whose compilers can build it, flags)
TIERS = {
    "avx2": ("x86_64", AVX2),
    "avx512": ("x86_64", AVX512),
    "avx512_bf16": ("x86_64", [*AVX512, "-mavx512bf16"]),  # a part of avx512 that some CPUs of this tier have
    "neon": ("aarch64", BASELINE["aarch64"]),
    "neon_dot": ("aarch64", ["-march=armv8.2-a+dotprod"]),
}


def compiled_tiers(machine: str = MACHINE) -> list[str]:
    return [tier for tier, (needed, _) in TIERS.items() if needed == machine]


def kernel_sources(machine: str = MACHINE, tiers: list[str] | None = None) -> list[tuple[str, list[str]]]:
    """Every C file of csrc that is for a machine, with the flags of its folder. `tiers`: beside the scalar one."""
    tiers, baseline = compiled_tiers(machine) if tiers is None else tiers, BASELINE.get(machine, [])
    have = [f"-DOX_HAVE_{t.upper()}" for t in tiers]
    folders = [("csrc", baseline + have), ("csrc/scalar", baseline), *((f"csrc/{t}", TIERS[t][1]) for t in tiers)]
    return [(str(f.relative_to(ROOT)), flags) for d, flags in folders for f in sorted((ROOT / d).glob("*.c"))]


def modules() -> list[Extension]:
    found = []
    for pyx in sorted((ROOT / "oxillama").rglob("*.pyx")):
        path = pyx.relative_to(ROOT)
        found.append(
            Extension(
                ".".join(path.with_suffix("").parts),
                [str(path)],
                include_dirs=["csrc"],
                extra_compile_args=["-O3", "-g0", "-ffp-contract=off", "-fopenmp", *BASELINE.get(MACHINE, [])],
                extra_link_args=["-fopenmp"],
                depends=["csrc/ox_kernels.h", "csrc/ox_formats.def"],
            )
        )
    return found


class BuildKernels(build_ext):
    """``build_ext`` that first compiles csrc/ and hands its objects to the module that owns the table."""

    user_options: ClassVar = [
        *build_ext.user_options,
        ("sanitize", None, "check memory and undefined behaviour"),
        ("sanitize-threads", None, "check for races between threads"),
    ]
    boolean_options: ClassVar = [*build_ext.boolean_options, "sanitize", "sanitize-threads"]

    def initialize_options(self) -> None:
        super().initialize_options()
        self.sanitize = self.sanitize_threads = False

    @property
    def checks(self) -> list[str]:
        return SANITIZE if self.sanitize else SANITIZE_THREADS if self.sanitize_threads else []

    def build_extensions(self) -> None:
        objects = self.compile_kernels()
        for ext in self.extensions:
            if self.checks:  # Cython's code is long, and nothing in it takes long
                ext.extra_compile_args += [*self.checks, "-O0"]
                ext.extra_link_args += self.checks
            if ext.name.endswith("._table"):
                ext.extra_objects, ext.depends = objects, [*ext.depends, *objects]
        self.parallel = self.parallel or os.cpu_count()
        super().build_extensions()

    def compile_kernels(self) -> list[str]:
        # Not in build_temp, which is another one for each way to install: these take the longest of all.
        command = " ".join([*self.compiler.compiler_so, *self.checks])
        folder = f"build/kernels-{hashlib.sha256(command.encode()).hexdigest()[:8]}"

        def compile_one(job: tuple[str, list[str]]) -> str:
            source, flags = job
            output = Path(self.compiler.object_filenames([source], output_dir=folder)[0])
            if self.force or is_stale(output):
                flags = [*COMMON, *flags, *self.checks, "-MMD"]
                self.compiler.compile([source], output_dir=folder, extra_postargs=flags)
            return str(output)

        # The longest first, so that no core is idle at the end.
        # Threads meet in the Cython modules; kernels know none, so that one tier shows what all would.
        sources = kernel_sources(tiers=[]) if self.sanitize_threads else kernel_sources()
        slow_first = sorted(sources, key=lambda job: "/gemm_" not in job[0])
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(compile_one, slow_first))


def is_stale(output: Path) -> bool:
    """Whether an object is missing, or older than what the compiler said (-MMD) that it was made of."""
    listing = output.with_suffix(".d")
    if not output.exists() or not listing.exists():
        return True
    inputs = [ROOT / "setup.py", *(Path(p) for p in listing.read_text().replace("\\\n", " ").split(":", 1)[1].split())]
    return any(not p.exists() or p.stat().st_mtime > output.stat().st_mtime for p in inputs)


def cythonized() -> list[Extension]:
    from Cython.Build import cythonize

    directives = {
        "language_level": 3,
        "boundscheck": False,
        "wraparound": False,
        "cdivision": True,
        "initializedcheck": False,
        "embedsignature": True,
        "freethreading_compatible": False,
    }
    return cythonize(modules(), compiler_directives=directives, nthreads=os.cpu_count() or 1, build_dir="build/cython")


if __name__ == "__main__":
    setup(ext_modules=cythonized(), cmdclass={"build_ext": BuildKernels})
