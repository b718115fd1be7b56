"""Build of the C kernels and the Cython modules; everything else about the package stands in pyproject.toml.

csrc/ is compiled to plain objects, one set of flags per folder (folder = CPU tier), and linked once, into
``oxillama.kernels._table``; the other modules reach the kernels through the table that it hands out. Objects are kept
and rebuilt only when their source or a header changed, so that a change to one C file costs seconds.

A wheel carries a bill of materials with a digest of the sources. If dist/ holds a wheel of the sources that are there,
for this machine and Python, then it is the wheel, and nothing is compiled.
"""

import hashlib
import json
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import uuid
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NOT_ON_WINDOWS = "oxillama doesn't run on Windows yet: install it under WSL 2, or on Linux or macOS."
ROOT = Path(__file__).parent


def target_machine() -> str:
    """The machine that is built for, which in a cross build is another one than this; as gcc calls it."""
    name = sysconfig.get_platform().rpartition("-")[2]
    name = platform.machine() if name == "universal2" else name
    return {"amd64": "x86_64", "AMD64": "x86_64", "arm64": "aarch64"}.get(name, name)


MACHINE = target_machine()
# Apple's clang has the pragmas and no library: LDFLAGS must say where libomp is.
OPENMP = (["-Xclang", "-fopenmp"], ["-lomp"]) if sys.platform == "darwin" else (["-fopenmp"], ["-fopenmp"])

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
    "avx_vnni": ("x86_64", [*AVX2, "-mavxvnni"]),
    "avx512": ("x86_64", AVX512),
    "avx512_bf16": ("x86_64", [*AVX512, "-mavx512bf16"]),  # a part of avx512 that some CPUs of this tier have
    "amx": ("x86_64", AVX512),  # what AMX adds is written for the assembler
    "neon": ("aarch64", BASELINE["aarch64"]),
    "neon_dot": ("aarch64", ["-march=armv8.2-a+dotprod"]),
    "neon_i8mm": ("aarch64", ["-march=armv8.2-a+dotprod+i8mm"]),
}


def compiled_tiers(machine: str = MACHINE) -> list[str]:
    return [tier for tier, (needed, _) in TIERS.items() if needed == machine]


def kernel_sources(machine: str = MACHINE, tiers: list[str] | None = None) -> list[tuple[str, list[str]]]:
    """Every C file of csrc that is for a machine, with the flags of its folder. `tiers`: beside the scalar one."""
    tiers, baseline = compiled_tiers(machine) if tiers is None else tiers, BASELINE.get(machine, [])
    have = [f"-DOX_HAVE_{t.upper()}" for t in tiers]
    folders = [("csrc", baseline + have), ("csrc/scalar", baseline), *((f"csrc/{t}", TIERS[t][1]) for t in tiers)]
    return [(str(f.relative_to(ROOT)), flags) for d, flags in folders for f in sorted((ROOT / d).glob("*.c"))]


# An instruction of each tier: compilers call assemblers, which may be older than they are. Those that a tier adds last.
X86, ARM = "#include <immintrin.h>\n", "#include <arm_neon.h>\n"
PROBES = {
    "avx2": X86 + "__m256 f(__m256 a) { return _mm256_fmadd_ps(a, a, a); }",
    "avx_vnni": X86 + "__m256i f(__m256i a) { return _mm256_dpbusd_avx_epi32(a, a, a); }",
    "avx512": X86 + "__m512i f(__m512i a) { return _mm512_dpbusd_epi32(a, a, a); }",
    "avx512_bf16": X86 + "__m512 f(__m512 a, __m512bh b) { return _mm512_dpbf16_ps(a, b, b); }",
    "amx": 'void f(void) { __asm__("tdpbssd %tmm2, %tmm1, %tmm0; tdpbf16ps %tmm2, %tmm1, %tmm0"); }',
    "neon": ARM + "float32x4_t f(float32x4_t a) { return vfmaq_f32(a, a, a); }",
    "neon_dot": ARM + "int32x4_t f(int32x4_t a, int8x16_t b) { return vdotq_s32(a, b, b); }",
    "neon_i8mm": ARM + "int32x4_t f(int32x4_t a, int8x16_t b) { return vmmlaq_s32(a, b, b); }",
}


def understood(compiler: list[str]) -> list[str]:
    """The tiers of the machine that a compiler and its assembler can write: older ones leave out what they can't."""

    def knows(tier: str, output: str) -> bool:
        command = [*compiler, *TIERS[tier][1], "-O1", "-x", "c", "-", "-c", "-o", output]
        return subprocess.run(command, input=PROBES[tier].encode(), capture_output=True).returncode == 0

    with tempfile.TemporaryDirectory() as folder:
        return [tier for tier in compiled_tiers() if knows(tier, os.path.join(folder, "probe.o"))]


# What a build needs, in the order in which it is looked for: what to call it, a program that needs it, and its flags.
NEEDED = [
    ("a C compiler", "#include <stdio.h>\nint main(void) { return 0; }", []),
    ("OpenMP", "#include <omp.h>\nint main(void) { return omp_get_max_threads() == 0; }", [*OPENMP[0], *OPENMP[1]]),
    ("Python's headers", "#include <Python.h>\nint main(void) { return 0; }", []),
]
# Package managers and what they install, for gcc, or for clang.
PACKAGES = {
    "apt-get": ("apt-get install gcc libc6-dev python3-dev", "apt-get install clang libomp-dev libc6-dev python3-dev"),
    "dnf": ("dnf install gcc python3-devel", "dnf install clang libomp-devel python3-devel"),
    "apk": ("apk add gcc musl-dev python3-dev", "apk add clang openmp-dev musl-dev python3-dev"),
    "brew": ("brew install gcc", "brew install libomp"),
}


def lacking(compiler: list[str], folders: list[str]) -> str | None:
    """Finds what a build would fail for: one sentence that says what to install; None if nothing is missing.

    folders: those of Python's headers.
    """
    with tempfile.TemporaryDirectory() as work:
        for name, program, flags in NEEDED:
            source = Path(work, "probe.c")
            source.write_text(program)
            include = [f"-I{folder}" for folder in folders]
            linked = [*flags, *shlex.split(os.environ.get("LDFLAGS", ""))]
            command = [*compiler, *include, str(source), "-o", str(Path(work, "probe")), *linked]
            try:
                done = subprocess.run(command, capture_output=True, text=True, errors="replace")
            except OSError as error:
                said = f"can't be started ({error.strerror})"
                return f"oxillama needs {name}, and {compiler[0]} {said}: {remedy(compiler)}"
            if done.returncode:
                faults = [line.rpartition("error: ")[2] for line in done.stderr.splitlines() if "error" in line]
                said = f"says {faults[0]!r}" if faults else f"ends with status {done.returncode}"
                return f"oxillama needs {name}, and {compiler[0]} {said}: {remedy(compiler)}"
    return None


def remedy(compiler: list[str]) -> str:
    """Names what to install by the machine's package manager, or by each if there is none, and where a wheel goes."""
    there = [name for name in PACKAGES if shutil.which(name)] or list(PACKAGES)
    clang = "clang" in Path(compiler[0]).name or sys.platform == "darwin"
    commands = ", or ".join(f"`{PACKAGES[name][clang]}`" for name in there)
    return f"install it ({commands}), or put a wheel of these sources into dist/, which needs no compiler"


# Modules with loops of their own over numbers, texts or masks have -O3.
HOT = [
    *("char_table", "chosen", "convert", "elementary", "logprobs", "norms", "random", "repeats", "rope", "routing"),
    *("rows", "sampling", "stacks", "trie", "walk", "_merging", "_normalizing", "_texts", "_unigram"),
]
# Those that check arguments and call kernels, or work on Python's objects: with -O1 they compile in 0.6 of the time of
# -O2, which the others have, and tokens of the smallest model come as fast. With the others at -O1, too, compiling
# schemas would take 1.07 of the time, and masks 1.08.
LIGHT = [
    *("_check", "_mapping", "_memory", "_table", "_team", "_threads", "activations", "attention", "batch"),
    *("compilation", "compute_turn", "delta", "dplr", "experts", "files", "gated", "heads", "lora", "matmul", "matrix"),
    *("number_automaton", "recurrent", "rwkv", "shared_parts", "signals", "slots", "ssm", "streams"),
]
# Those that include csrc/ox_math.h.
MATH = ("elementary", "logprobs", "rope", "routing", "sampling")
# Cython's code for memoryviews, which half of the modules would have a copy of: a leaf, since any of them may use it.
SHARED = "oxillama._util._memoryviews"


def level(path: Path) -> str:
    """How much a Cython module is optimised."""
    return "-O3" if path.stem in HOT else "-O1" if path.stem in LIGHT else "-O2"


def extension(path: Path, name: str) -> Extension:
    return Extension(
        name,
        [str(path)],
        include_dirs=["csrc"],
        extra_compile_args=[level(path), "-g0", "-ffp-contract=off", *OPENMP[0], *BASELINE.get(MACHINE, [])],
        extra_link_args=list(OPENMP[1]),
        depends=["csrc/ox_kernels.h", "csrc/ox_formats.def", *(["csrc/ox_math.h"] if path.stem in MATH else [])],
    )


def modules() -> list[Extension]:
    paths = [pyx.relative_to(ROOT) for pyx in sorted((ROOT / "oxillama").rglob("*.pyx"))]
    found = [extension(path, ".".join(path.with_suffix("").parts)) for path in paths]
    shared = Path(*SHARED.split(".")).with_suffix(".c")  # translate() has it written, below build/
    return [*found, Extension(SHARED, [str(shared)], extra_compile_args=["-O1", "-g0"])]


# C files that take seconds, the longest first, so that no core is idle at the end.
SLOW = ["gemm_words", "gemm_q8", "gemm_rows", "quantise", "table", "quantise_lanes", "gemm_grid", "gemm_float"]


def rank(source: str) -> int:
    """Where a C file of csrc stands in the order of building. A tier's table.c is slow, the scalar one is not."""
    path = Path(source)
    return SLOW.index(path.stem) if path.stem in SLOW and str(path) != "csrc/scalar/table.c" else len(SLOW)


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
        # Before anything is translated, which takes a minute.
        if fault := lacking(self.compiler.compiler_so, self.include_dirs):
            sys.exit(fault)
        translate(self.extensions)
        objects = self.compile_kernels()
        for ext in self.extensions:
            if self.checks:  # Cython's code is long, and nothing in it takes long
                ext.extra_compile_args += [*self.checks, "-O0"]
                ext.extra_link_args += self.checks
            if ext.name.endswith("._table"):
                ext.extra_objects, ext.depends = objects, [*ext.depends, *objects]
        self.extensions.sort(key=lambda ext: -sum(os.path.getsize(source) for source in ext.sources))
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

        # Threads meet in the Cython modules; kernels know none, so that one tier shows what all would.
        tiers = [] if self.sanitize_threads else understood(self.compiler.compiler_so)
        slow_first = sorted(kernel_sources(tiers=tiers), key=lambda job: (rank(job[0]), job[0]))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(compile_one, slow_first))


def is_stale(output: Path) -> bool:
    """Whether an object is missing, or older than what the compiler said (-MMD) that it was made of."""
    listing = output.with_suffix(".d")
    if not output.exists() or not listing.exists():
        return True
    inputs = [ROOT / "setup.py", *(Path(p) for p in listing.read_text().replace("\\\n", " ").split(":", 1)[1].split())]
    return any(not p.exists() or p.stat().st_mtime > output.stat().st_mtime for p in inputs)


def translate(extensions: list[Extension]) -> None:
    """Puts the C files that Cython makes in the place of extensions' sources; here, since most commands need none."""
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
    made = cythonize(
        extensions,
        compiler_directives=directives,
        nthreads=os.cpu_count() or 1,
        build_dir="build/cython",
        shared_utility_qualified_name=SHARED,
    )
    by_name = {ext.name: ext for ext in made}
    for ext in extensions:
        ext.sources, ext.depends = by_name[ext.name].sources, by_name[ext.name].depends


# ---- wheels

SBOM = "sboms/oxillama-cpu.cdx.json"  # in dist-info: PEP 770
# A wheel that was built before had none of these, and another result.
BUILD_VARIABLES = (
    "CC",
    "CFLAGS",
    "CPPFLAGS",
    "LDFLAGS",
    "LDSHARED",
    "ARCHFLAGS",
    "MACOSX_DEPLOYMENT_TARGET",
    "_PYTHON_HOST_PLATFORM",
    "OXILLAMA_BUILD",
)


def source_digest() -> str:
    """SHA-256 over the names and contents of all that a wheel is made of."""
    kinds = {".c", ".h", ".def", ".py", ".pyx", ".pxd", ".pyi", ".html", ".css", ".js", ".svg", ".typed"}
    files = [f for d in ("csrc", "oxillama") for f in (ROOT / d).rglob("*") if f.suffix in kinds]
    files += (ROOT / "oxillama/shipped").glob("*.gguf")  # a user's own models may lie anywhere else
    files += [ROOT / name for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE")]
    total = hashlib.sha256()
    for name, file in sorted((f.relative_to(ROOT).as_posix(), f) for f in files):
        total.update(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {name}\n".encode())
    return total.hexdigest()


def compiler_version() -> str:
    command = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    try:
        return subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout.split("\n")[0]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def bill_of_materials(name: str, version: str) -> str:
    """CycloneDX 1.6 of what a wheel holds beside what auditwheel adds, which writes a bill of its own.

    Not a purl of PyPI, where nothing of ours is uploaded.
    """
    import Cython
    import setuptools

    digest, own = source_digest(), f"pkg:generic/{name}@{version}"
    part = {"type": "library", "bom-ref": own, "name": name, "version": version, "purl": own}
    part["licenses"] = [{"license": {"id": "Apache-2.0"}}]
    part["properties"] = [{"name": "oxillama:sources:sha256", "value": digest}]
    tools = {"Cython": Cython.__version__, "setuptools": setuptools.__version__, "C compiler": compiler_version()}
    models = [
        {
            "type": "machine-learning-model",
            "bom-ref": f.name,
            "name": f.name,
            "licenses": part["licenses"],
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(f.read_bytes()).hexdigest()}],
        }
        for f in sorted((ROOT / "oxillama/shipped").glob("*.gguf"))
    ]
    # Libraries of the server's page, as NOTICE names them.
    scripts = [
        {"type": "library", "bom-ref": name, "name": name, "version": made, "licenses": [{"license": {"id": licence}}]}
        for name, made, licence in re.findall(
            r"(?m)^(\S+) ([\d.]+) \(([\w.-]+); ", (ROOT / "NOTICE").read_text("utf-8")
        )
    ]
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, f"{own}?{MACHINE}&{digest}&{sorted(tools.items())}").urn,
        "version": 1,
        "metadata": {
            "component": part,
            "tools": {"components": [{"type": "application", "name": n, "version": v} for n, v in tools.items()]},
        },
        "components": models + scripts,
        "dependencies": [{"ref": own, "dependsOn": [m["bom-ref"] for m in models + scripts]}],
    }
    return json.dumps(bill, indent=1) + "\n"


def version() -> str:
    """The package's, as pyproject.toml has it."""
    import tomllib

    found: str = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    return found


def sources_of(wheel: Path) -> str | None:
    """The digest of the sources that a wheel was made of, if it tells, and if compiled modules are in it."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            if not any(n.startswith("oxillama/") and n.endswith(".so") for n in archive.namelist()):
                return None
            (bill,) = (n for n in archive.namelist() if n.endswith(f".dist-info/{SBOM}"))
            properties = json.loads(archive.read(bill))["metadata"]["component"]["properties"]
        return next(p["value"] for p in properties if p["name"] == "oxillama:sources:sha256")
    except (OSError, zipfile.BadZipFile, ValueError, KeyError, TypeError, StopIteration):
        return None


def ready_wheel(folder: Path) -> Path | None:
    """The wheel in a folder that a build of this tree would give, best platform tag first."""
    wheels = sorted(folder.glob("oxillama_cpu-*.whl"))
    if not wheels or any(os.environ.get(name) for name in BUILD_VARIABLES):
        return None
    from packaging.tags import sys_tags
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename
    from packaging.version import Version

    rank = {tag: i for i, tag in enumerate(sys_tags())}
    digest, own, found = source_digest(), Version(version()), []
    for wheel in wheels:
        try:
            _, made, _, tags = parse_wheel_filename(wheel.name)
        except InvalidWheelFilename:
            continue
        ranks = [rank[tag] for tag in tags if tag in rank and tag.platform != "any" and made == own]
        if ranks and sources_of(wheel) == digest:
            found.append((min(ranks), wheel))
    return min(found)[1] if found else None


def wheel_command() -> type:
    """``bdist_wheel`` with a bill of materials, which takes a wheel of these sources from dist/ if there is one."""
    from setuptools.command.bdist_wheel import bdist_wheel  # since 70.1; tests read flags here with older ones

    class PackWheel(bdist_wheel):
        def run(self) -> None:
            ready = ready_wheel(ROOT / "dist")
            if ready is None:
                super().run()
                return
            self.announce(
                f"{ready} was made of these sources: nothing is compiled (OXILLAMA_BUILD=1 does)", logging.WARNING
            )
            if not (target := Path(self.dist_dir) / ready.name).exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ready, target)

        def egg2dist(self, egginfo_path: str, distinfo_path: str) -> None:
            super().egg2dist(egginfo_path, distinfo_path)
            bill = Path(distinfo_path) / SBOM
            bill.parent.mkdir()
            bill.write_text(bill_of_materials(self.distribution.get_name(), self.distribution.get_version()), "utf-8")

    return PackWheel


if __name__ == "__main__":
    if sys.platform == "win32":
        sys.exit(NOT_ON_WINDOWS)
    setup(ext_modules=modules(), cmdclass={"build_ext": BuildKernels, "bdist_wheel": wheel_command()})
