"""Build of the C kernels and the Cython modules; everything else about the package stands in pyproject.toml.

csrc/ is compiled to plain objects, one set of flags per folder (folder = CPU tier), and linked once, into
``oxillama.kernels._table``; the other modules reach the kernels through the table that it hands out. Objects are kept
and rebuilt only when their source or a header changed, so that a change to one C file costs seconds.
"""

import os
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
X86 = platform.machine() in ("x86_64", "AMD64")
ARM = platform.machine() in ("aarch64", "arm64")

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
]
BASELINE = ["-march=x86-64-v2"] if X86 else []
# What ox_cpu.c tests for, and nothing that it doesn't.
AVX2 = ["-march=x86-64-v2", "-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mprefer-vector-width=512"]
# folder -> (can this machine's compiler build it?, flags)
TIERS = {
    "avx2": (X86, AVX2),
    "avx512": (X86, AVX512),
    "avx512_bf16": (X86, [*AVX512, "-mavx512bf16"]),  # a part of avx512 that some CPUs of this tier have
    "neon": (ARM, ["-march=armv8-a"]),
}


def compiled_tiers() -> list[str]:
    return [t for t, (possible, _) in TIERS.items() if possible and any((ROOT / "csrc" / t).glob("*.c"))]


def kernel_sources() -> list[tuple[str, list[str]]]:
    """Every C file of csrc with the flags of its folder."""
    have = [f"-DOX_HAVE_{t.upper()}" for t in compiled_tiers()]
    folders = [("csrc", BASELINE + have), ("csrc/scalar", BASELINE)]
    folders += [(f"csrc/{t}", TIERS[t][1]) for t in compiled_tiers()]
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
                extra_compile_args=["-O3", "-g0", "-ffp-contract=off", "-fopenmp", *BASELINE],
                extra_link_args=["-fopenmp"],
                depends=["csrc/ox_kernels.h", "csrc/ox_formats.def"],
            )
        )
    return found


class BuildKernels(build_ext):
    """``build_ext`` that first compiles csrc/ and hands its objects to the module that owns the table."""

    def build_extensions(self) -> None:
        objects = self.compile_kernels()
        for ext in self.extensions:
            if ext.name.endswith("._table"):
                ext.extra_objects, ext.depends = objects, [*ext.depends, *objects]
        self.parallel = self.parallel or os.cpu_count()
        super().build_extensions()

    def compile_kernels(self) -> list[str]:
        def compile_one(job: tuple[str, list[str]]) -> str:
            source, flags = job
            output = Path(self.compiler.object_filenames([source], output_dir=self.build_temp)[0])
            if self.force or is_stale(output):
                self.compiler.compile([source], output_dir=self.build_temp, extra_postargs=[*COMMON, *flags, "-MMD"])
            return str(output)

        # The longest first, so that no core is idle at the end.
        slow_first = sorted(kernel_sources(), key=lambda job: "/avx" not in job[0])
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
