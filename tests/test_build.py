"""What the build must guarantee: a baseline without AVX, flags by folder, and complete source and binary packages."""

import ast
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import oxillama
from oxillama.kernels import _table

ROOT = Path(__file__).parents[1]
PACKAGE = Path(oxillama.__file__).parent
SERVER = PACKAGE / "server"
DATA = PACKAGE / "data"
RAY = PACKAGE / "ray"
EXAMPLES = PACKAGE / "examples"
INTEGRATIONS = PACKAGE / "integrations"
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTENSIONS = sorted(PACKAGE.rglob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}"))

# Registers that only AVX has, and VEX-encoded mnemonics: all begin with v, and no baseline instruction does but these.
AVX = re.compile(r"%[yz]mm\d|^(?!ver[rw]\b|vm[a-z]+\b)v[a-z]", re.MULTILINE)

x86_only = pytest.mark.skipif(not _table.compiled_tiers().count("avx2"), reason="tiers of other machines")


@pytest.fixture(scope="module")
def build():
    """setup.py as a module: its flags are the ones to test."""
    pytest.importorskip("setuptools", reason="setuptools builds the package")
    spec = importlib.util.spec_from_file_location("oxillama_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def instructions(binary):
    """Disassembled instructions of an object or shared library, one a line."""
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("objdump is not installed")
    listing = subprocess.run([objdump, "-d", "--no-show-raw-insn", binary], capture_output=True, text=True, check=True)
    return "\n".join(line.split("\t", 1)[1] for line in listing.stdout.splitlines() if "\t" in line)


def compile_c(source, flags, output):
    compiler = (sysconfig.get_config_var("CC") or "cc").split()
    if shutil.which(compiler[0]) is None:
        pytest.skip("there is no C compiler")
    subprocess.run([*compiler, *flags, "-fPIC", "-c", str(ROOT / source), "-o", str(output)], check=True, cwd=ROOT)
    return output


def avx_in(text):
    return AVX.findall(text)


@pytest.mark.long
@x86_only
def test_baseline_objects_have_no_avx(build, tmp_path):
    """Everything that runs before the tier is chosen, or on a CPU without AVX."""
    checked = 0
    for i, (source, flags) in enumerate(build.kernel_sources()):
        if Path(source).parent.name in ("csrc", "scalar"):
            text = instructions(compile_c(source, build.COMMON + flags, tmp_path / f"{i}.o"))
            assert len(text) > 100 or Path(source).name == "ox_grids.c"  # tables only
            assert avx_in(text) == [], source
            checked += 1
    assert checked >= 7


@pytest.mark.long
@x86_only
def test_the_check_sees_avx(build, tmp_path):
    """The same check on a file of the next tier up finds plenty."""
    source, flags = next(s for s in build.kernel_sources() if "avx2" in s[0])
    assert len(avx_in(instructions(compile_c(source, [*build.COMMON, "-O1", *flags], tmp_path / "avx2.o")))) > 100


@pytest.mark.long
@x86_only
def test_byte_products_of_avx_vnni_are_in_its_folder_alone_and_need_no_avx512(build, tmp_path):
    if "avx_vnni" not in _table.compiled_tiers():
        pytest.skip("the compiler doesn't know AVX-VNNI")
    flags, found = dict(build.kernel_sources()), {}
    for tier in ("avx2", "avx_vnni"):
        source = f"csrc/{tier}/gemm_grid.c"
        text = instructions(compile_c(source, [*build.COMMON, "-O1", *flags[source]], tmp_path / f"{tier}.o"))
        found[tier] = text.count("vpdpbusd"), text.count("vpmaddubsw")
        assert re.findall(r"%zmm|%k[0-7]|%[xy]mm(?:1[6-9]|[23]\d)|{evex}", text) == []
    assert found["avx2"][0] == found["avx_vnni"][1] == 0
    assert min(found["avx2"][1], found["avx_vnni"][0]) > 100


def test_a_compiler_without_a_tiers_instructions_leaves_it_out(build, tmp_path):
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\ncase $* in *avx*vnni* | *i8mm*) exit 1 ;; esac\n")
    compiler.chmod(0o755)
    gone = ("avx_vnni", "avx512", "avx512_bf16", "amx", "neon_i8mm")
    left = [tier for tier in build.compiled_tiers() if tier not in gone]
    assert build.understood([str(compiler), "-c"]) == left
    assert {Path(s).parent.name for s, _ in build.kernel_sources(tiers=left)} == {"csrc", "scalar", *left}


def test_an_assembler_without_a_tiers_instructions_leaves_it_out(build, tmp_path):
    """The compiler itself knows all flags, and refuses what it hands on: each probe is of its tier alone."""
    compiler = tmp_path / "cc"
    compiler.write_text(
        "#!/bin/sh\ncase \" $* \" in *' -E '*) exit 0 ;; esac\n! grep -E 'avx_epi32|dpbf16|vdotq|vmmlaq' > /dev/null\n"
    )
    compiler.chmod(0o755)
    later = ("avx_vnni", "avx512_bf16", "amx", "neon_dot", "neon_i8mm")
    assert build.understood([str(compiler), "-c"]) == [t for t in build.compiled_tiers() if t not in later]
    assert build.PROBES.keys() == build.TIERS.keys()


@pytest.mark.long
def test_tiers_are_understood_whose_files_this_compiler_compiles(build, tmp_path):
    compiler = (sysconfig.get_config_var("CC") or "cc").split()
    if shutil.which(compiler[0]) is None:
        pytest.skip("there is no C compiler")
    compiled = []
    for tier in build.compiled_tiers():
        sources = [(s, flags) for s, flags in build.kernel_sources() if Path(s).parent.name == tier]
        source, flags = min(sources, key=lambda job: (ROOT / job[0]).stat().st_size)
        command = [*compiler, *build.COMMON, "-O1", *flags, "-c", source, "-o", str(tmp_path / "a.o")]
        if subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0:
            compiled.append(tier)
    assert build.understood(compiler) == compiled != []


@pytest.mark.sweep(9)
@x86_only
@pytest.mark.parametrize("path", EXTENSIONS, ids=lambda p: p.name.split(".")[0])
def test_modules_around_the_kernels_have_no_avx(path):
    text = instructions(path)
    assert len(text) > 1000
    if path.name.startswith("_table."):  # holds every tier
        assert avx_in(text) != []
    else:
        assert avx_in(text) == []


def test_modules_whose_optimisation_is_chosen_by_name_exist(build):
    stems = [path.stem for path in (ROOT / "oxillama").rglob("*.pyx")]
    chosen = [*build.HOT, *build.LIGHT]
    assert len(chosen) == len(set(chosen)) > 30
    assert {name: stems.count(name) for name in chosen} == dict.fromkeys(chosen, 1)
    levels = {path.stem: build.level(path) for path in (ROOT / "oxillama").rglob("*.pyx")}
    assert (levels["sampling"], levels["matmul"], levels["objects"]) == ("-O3", "-O1", "-O2")


def test_flags_depend_on_nothing_but_the_folder(build):
    for source, flags in build.kernel_sources():
        everything = " ".join([*build.COMMON, *flags])
        assert "-march=native" not in everything
        assert "-ffast-math" not in everything
        assert "-ffp-contract=off" in everything, source
    folders = {Path(s).parent.name: tuple(f) for s, f in build.kernel_sources()}
    alike = [folder for folder in ("csrc", "scalar", "amx") if folder in folders]  # amx has avx512's, and assembler
    assert len({f for folder, f in folders.items() if folder not in alike}) == len(folders) - len(alike)


def test_every_c_file_is_compiled(build):
    compiled = {source for source, _ in build.kernel_sources()}
    present = {str(p.relative_to(ROOT)) for p in (ROOT / "csrc").rglob("*.c")}
    others = build.TIERS.keys() - set(build.compiled_tiers())
    assert present - compiled == {p for p in present if Path(p).parent.name in others}


def test_kernels_use_no_python_memory_threads_or_environment():
    """csrc is plain arithmetic: what it may call is what this list leaves."""
    calls = r"\b(?:malloc|calloc|realloc|free|getenv|pthread_\w+|printf|fprintf|abort|exit)\s*\("
    forbidden = re.compile(calls + r"|Python\.h|\bomp_|#pragma omp")
    for path in sorted((ROOT / "csrc").rglob("*.[ch]")):
        code = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.DOTALL)
        assert forbidden.findall(code) == [], path.name


# ---- wheels


@pytest.fixture
def tree(build, tmp_path, monkeypatch):
    """A small tree in the place of this one."""
    monkeypatch.setattr(build, "ROOT", tmp_path)
    names = "setup.py pyproject.toml README.md LICENSE NOTICE csrc/a.c oxillama/b.pyx oxillama/py.typed"
    for name in names.split():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.1.0"\n')
    (tmp_path / "NOTICE").write_text("page.js 1.2 (MIT; page.js), https://page.example\n")
    (tmp_path / "oxillama/shipped").mkdir()
    (tmp_path / "oxillama/shipped/default.gguf").write_bytes(b"GGUF")
    for name in build.BUILD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_the_digest_is_of_what_a_wheel_is_made_of(build, tree):
    first = build.source_digest()
    for name in ("oxillama/b.cpython-311.so", "oxillama/notes.md", "csrc/a.o", "oxillama/mine.gguf"):
        (tree / name).write_text("built, or not for a wheel")
    assert build.source_digest() == first
    seen = {first}
    for name in ("csrc/a.c", "oxillama/py.typed", "setup.py", "oxillama/shipped/default.gguf", "oxillama/new.js",
                 "oxillama/new.py"):  # fmt: skip
        (tree / name).write_text("changed")
        seen.add(build.source_digest())
    (tree / "oxillama/new.py").rename(tree / "oxillama/newer.py")
    assert len(seen | {build.source_digest()}) == 8


def test_the_bill_of_materials(build, tree):
    pytest.importorskip("Cython", reason="the bill names its version")
    text = build.bill_of_materials("oxillama-cpu", "1.2")
    bill = json.loads(text)
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch("urn:uuid:[0-9a-f-]{36}", bill["serialNumber"])
    part, (model, script) = bill["metadata"]["component"], bill["components"]
    assert (part["name"], part["version"]) == ("oxillama-cpu", "1.2")
    assert "pypi" not in part["purl"]  # another project
    assert (script["name"], script["version"], script["licenses"][0]["license"]["id"]) == ("page.js", "1.2", "MIT")
    assert model["hashes"][0]["content"] == hashlib.sha256(b"GGUF").hexdigest()
    assert {"Cython", "setuptools", "C compiler"} == {t["name"] for t in bill["metadata"]["tools"]["components"]}
    assert text == build.bill_of_materials("oxillama-cpu", "1.2") == json.dumps(bill, indent=1) + "\n"  # nothing of now


def packed(folder, tag, bill, version="0.1.0", module="oxillama/b.so"):
    path = folder / f"oxillama_cpu-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(module, b"")
        archive.writestr("oxillama_cpu-0.1.0.dist-info/sboms/oxillama-cpu.cdx.json", bill)
    return path


def test_a_wheel_of_the_same_sources_for_this_machine_is_taken(build, tree, monkeypatch):
    tags = pytest.importorskip("packaging.tags")
    pytest.importorskip("Cython", reason="the bill names its version")
    own, *_, last = map(str, tags.sys_tags())
    bill = build.bill_of_materials("oxillama-cpu", "0.1.0")
    dist = tree / "dist"
    dist.mkdir()
    assert build.ready_wheel(dist) is None
    packed(dist, "cp39-cp39-win_amd64", bill)
    (dist / f"oxillama_cpu-0.0.9-{own}.whl").write_bytes(b"cut off")
    assert build.ready_wheel(dist) is None
    packed(dist, last, bill)
    best = packed(dist, own, bill)
    assert build.ready_wheel(dist) == best
    for name in ("CFLAGS", "ARCHFLAGS", "LDSHARED", "MACOSX_DEPLOYMENT_TARGET", "OXILLAMA_BUILD"):
        monkeypatch.setenv(name, "1")
        assert build.ready_wheel(dist) is None
        monkeypatch.delenv(name)
    assert build.ready_wheel(dist) == best
    (tree / "csrc/a.c").write_text("int changed;")
    assert build.ready_wheel(dist) is None


def test_wheels_of_others_are_passed_over(build, tree):
    tags = pytest.importorskip("packaging.tags")
    pytest.importorskip("Cython", reason="the bill names its version")
    own = str(next(tags.sys_tags()))
    bill = build.bill_of_materials("oxillama-cpu", "0.1.0")
    dist = tree / "dist"
    dist.mkdir()
    (dist / "oxillama_cpu-copy of a wheel.whl").write_bytes(b"")
    packed(dist, "py3-none-any", bill)
    packed(dist, own, bill, version="0.2.0")
    packed(dist, own, bill, module="oxillama/b.py")
    assert build.ready_wheel(dist) is None
    good = packed(dist, own, bill)
    assert build.ready_wheel(dist) == good


def test_windows_is_refused_in_one_sentence(build):
    code = (
        "import runpy, sys, setuptools.command.build_ext\n"
        "sys.platform = 'win32'\n"
        "runpy.run_path('setup.py', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, build.NOT_ON_WINDOWS + "\n")
    assert build.NOT_ON_WINDOWS.count(".") == 1


HEADERS = [sysconfig.get_paths()["include"]]


@pytest.mark.parametrize(
    ("compiler", "headers", "said"),
    [
        (["no-such-compiler"], HEADERS, "needs a C compiler, and no-such-compiler can't be started"),
        (["false"], HEADERS, "needs a C compiler, and false ends with status 1"),
        (["cc", "-nostdinc"], HEADERS, "needs a C compiler, and cc says"),
        (["cc", "-fno-such-flag"], HEADERS, "needs a C compiler, and cc says"),
        (["cc"], [], "needs Python's headers, and cc says"),
    ],
)
def test_what_a_build_lacks_is_one_sentence(build, tmp_path, monkeypatch, compiler, headers, said):
    if compiler[0] == "cc" and shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    found = build.lacking(compiler, headers)
    assert said in found
    assert "put a wheel of these sources into dist/" in found
    assert "\n" not in found
    monkeypatch.setenv("PATH", str(tmp_path))
    managers = ("apt-get", "dnf", "apk", "brew")
    assert all(name in build.remedy(["cc"]) for name in managers)
    (tmp_path / "apk").write_text("")
    (tmp_path / "apk").chmod(0o755)
    assert [name for name in managers if name in build.remedy(["clang"])] == ["apk"]
    assert "openmp-dev" in build.remedy(["clang"])


def test_a_build_has_what_it_needs(build, tmp_path):
    compiler = (sysconfig.get_config_var("CC") or "cc").split()
    if shutil.which(compiler[0]) is None:
        pytest.skip("there is no C compiler")
    assert build.lacking(compiler, HEADERS) is None
    (tmp_path / "omp.h").write_text('#error "there is none"')
    assert "needs OpenMP" in build.lacking(compiler, [str(tmp_path), *HEADERS])


def test_nothing_is_translated_without_a_compiler(build):
    code = (
        "import runpy, sys\n"
        "sys.argv = ['setup.py', '--quiet', 'build_ext', '--build-temp', sys.argv[1], '--build-lib', sys.argv[1]]\n"
        "import Cython.Build\n"
        "Cython.Build.cythonize = None\n"
        "runpy.run_path('setup.py', run_name='__main__')"
    )
    pytest.importorskip("Cython", reason="Cython translates the modules")
    env = os.environ | {"CC": "no-such-compiler"}
    done = subprocess.run([sys.executable, "-c", code, "build/none"], cwd=ROOT, capture_output=True, text=True, env=env)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "oxillama needs a C compiler, and no-such-compiler can't be started" in done.stderr.splitlines()[-1]


def test_each_python_of_the_classifiers_and_of_the_wheels_is_supported():
    pythons = [p.removesuffix("-*") for p in SETTINGS["tool"]["cibuildwheel"]["build"]]
    assert pythons[0] == "cp" + SETTINGS["project"]["requires-python"].removeprefix(">=").replace(".", "")
    classifiers = SETTINGS["project"]["classifiers"]
    assert {f"Programming Language :: Python :: 3.{p.removeprefix('cp3')}" for p in pythons} <= set(classifiers)


def test_scripts_that_workflow_and_instructions_name_exist():
    folder = ROOT / ".github"
    if not (ROOT / ".ci").is_dir():
        pytest.skip("the source package has no such scripts")
    texts = [p.read_text() for p in (*folder.rglob("*.yml"), ROOT / "CONTRIBUTING.md", ROOT / ".ci" / "run")]
    named = {name for text in texts for name in re.findall(r"(?<![\w/])\.ci/([a-z_]+(?:\.py)?)(?![\w*])", text)}
    assert {"wheel", "wheel_smoke", "wheel_beside", "sdist_offline", "check_packages.py"} <= named
    assert {name for name in named if not (ROOT / ".ci" / name).exists()} == set()


# ---- what pyproject.toml says


def names(requirements):
    return {re.match(r"[\w.-]+", r)[0].lower() for r in requirements}


def third_party_imports(paths):
    """Top-level names of everything that modules of the installed package import, and that Python doesn't bring."""
    found = set()
    for path in paths:
        if path.parent.name != "shipped":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    found |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    found.add(node.module.split(".")[0])
    return found - sys.stdlib_module_names - {"oxillama"}


def test_dependencies_are_few():
    assert names(SETTINGS["project"]["dependencies"]) == {"numpy", "tokenizers", "blake3", "jinja2", "tqdm"}
    assert "jinja2>=3.1.6" in SETTINGS["project"]["dependencies"]  # older sandboxes can be left


def test_every_import_is_a_declared_dependency():
    """huggingface_hub comes with tokenizers; the drop-in asks for packages of callers that want their objects."""
    declared = names(SETTINGS["project"]["dependencies"])
    apart = {SERVER, DATA, RAY, EXAMPLES, INTEGRATIONS}
    found = third_party_imports(p for p in PACKAGE.rglob("*.py") if not apart & {*p.parents})
    assert {"numpy", "tokenizers", "jinja2"} <= found <= declared | {"huggingface_hub", "openai", "transformers"}
    compat = third_party_imports((PACKAGE / "compat").rglob("*.py"))
    assert {"openai", "transformers"} <= compat


def test_the_server_imports_what_its_extra_brings():
    extra = names(SETTINGS["project"]["optional-dependencies"]["server"])
    declared = extra | names(SETTINGS["project"]["dependencies"])
    assert extra <= third_party_imports(SERVER.rglob("*.py")) <= declared


def test_the_examples_import_what_their_extra_brings():
    """pydantic comes with fastapi, and ray has an extra of its own."""
    extras = SETTINGS["project"]["optional-dependencies"]
    declared = names(extras["examples"] + extras["ray"])
    found = third_party_imports(EXAMPLES.rglob("*.py")) - names(SETTINGS["project"]["dependencies"])
    assert "fastapi" in found
    assert found <= declared | {"pydantic"}


def test_tables_import_what_their_extras_bring():
    extras = SETTINGS["project"]["optional-dependencies"]
    named = [need for name in ("data", "tables", "ray", "daft", "spark") for need in extras[name]]
    declared = names(SETTINGS["project"]["dependencies"] + named)
    found = third_party_imports(DATA.rglob("*.py"))
    assert {"pyarrow", "pandas", "polars", "ray", "daft", "pyspark"} <= found <= declared


def test_clusters_import_what_their_extra_brings():
    assert third_party_imports(RAY.rglob("*.py")) == names(SETTINGS["project"]["optional-dependencies"]["ray"]) - {
        "oxillama-cpu"
    }


@pytest.mark.parametrize(
    ("module", "extra", "library"),
    [
        ("lm_eval", "lm-eval", "lm_eval"),
        ("langchain", "langchain", "langchain_core"),
        ("llama_index", "llama-index", "llama_index"),
    ],
)
def test_integrations_import_what_their_extras_bring(module, extra, library):
    extras = SETTINGS["project"]["optional-dependencies"]
    assert any(name.replace("-", "_").startswith(library) for name in names(extras[extra]))
    assert extra in re.search(r"\[(.*)\]", extras["integrations"][0])[1].split(",")
    found = third_party_imports([INTEGRATIONS / f"{module}.py"]) - names(SETTINGS["project"]["dependencies"])
    assert found - {"pydantic", "click"} == {library}  # which needs those


def test_extras_that_the_instructions_name():
    assert {"test", "lint", "bench", "dev"} <= set(SETTINGS["project"]["optional-dependencies"])


def test_console_script_exists():
    module, _, function = SETTINGS["project"]["scripts"]["oxillama"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_python_version_is_the_same_everywhere():
    project = SETTINGS["project"]["requires-python"]
    assert project == f">={SETTINGS['tool']['mypy']['python_version']}"
    assert f"py{project[2:].replace('.', '')}" == SETTINGS["tool"]["ruff"]["target-version"]


def test_the_shipped_models_are_small_and_typed_markers_are_there():
    assert 500_000 < (PACKAGE / "shipped" / "default.gguf").stat().st_size < 3_000_000
    assert 100_000 < (PACKAGE / "shipped" / "default-draft.gguf").stat().st_size < 320_000
    assert (PACKAGE / "py.typed").exists()
    stubs = {p.with_suffix("") for p in PACKAGE.rglob("*.pyi")}
    assert {p.with_suffix("") for p in PACKAGE.rglob("*.pyx")} == stubs


def test_no_page_or_message_installs_the_package_of_another_project():
    kinds = {".py", ".pyi", ".pyx", ".pxd", ".md", ".html", ".js", ".txt", ".toml", ".yml", ".yaml"}
    files = [path for path in PACKAGE.rglob("*") if path.suffix in kinds]
    assert len(files) > 500
    wrong = re.compile(r"pip install (-\S+ )*['\"]?oxillama(?!_cpu-)")
    assert [str(path) for path in files if wrong.search(path.read_text("utf-8"))] == []
