"""Checks what is in a source package and in wheels: python .ci/check_packages.py TREE DIST

The source package must hold every file of the tree that a build, a test run or a reader needs; a wheel what users need
at run time, and nothing else: no library but that of OpenMP, and a bill of materials of these very sources.
"""

import importlib.util
import json
import re
import sys
import tarfile
import zipfile
from pathlib import Path

FOLDERS = ("oxillama", "csrc", "tests", "asv_benchmarks")
ROOT_FILES = {
    "setup.py",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "NOTICE",
    "MANIFEST.in",
}
BUILT = (".so", ".o", ".pyc")
MOST_BYTES = 15_000_000
# Grafted in by auditwheel or delocate. One OpenMP library, under a name that no other package uses.
GRAFTED = re.compile(r"oxillama_cpu\.libs/libgomp-[0-9a-f]+\.so[.0-9]*|oxillama/\.dylibs/libomp\.dylib")


def wanted_sources(tree: Path) -> set[str]:
    files = {p.relative_to(tree) for folder in FOLDERS for p in (tree / folder).rglob("*") if p.is_file()}
    hidden = {f for f in files if any(part.startswith(".") for part in f.parts)}
    workflows = {str(p.relative_to(tree)) for p in (tree / ".github").rglob("*") if p.is_file()}
    return {str(f) for f in files - hidden if f.suffix not in BUILT} | ROOT_FILES | workflows


def in_source_package(path: Path) -> set[str]:
    with tarfile.open(path) as archive:
        return {m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()}


def in_wheel(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}  # auditwheel lists folders, too


def wrong_in_wheel(names: set[str], tree: Path) -> list[str]:
    wanted = {"oxillama/py.typed", "oxillama/shipped/default.gguf", "oxillama/shipped/default-draft.gguf"}
    wanted |= {str(p.relative_to(tree)) for p in (tree / "oxillama/server/page").rglob("*") if p.is_file()}
    wanted |= {str(p.relative_to(tree)) for p in (tree / "oxillama").rglob("*.pyi")}
    wanted |= {str(p.relative_to(tree)) for p in (tree / "oxillama").rglob("*.py") if p.parent.name != "shipped"}
    compiled = {str(p.relative_to(tree).with_suffix("")) for p in (tree / "oxillama").rglob("*.pyx")}
    found = [f"wheel lacks {n}" for n in sorted(wanted - names)]
    found += [f"wheel lacks the module {m}" for m in sorted(compiled) if not any(n.startswith(m + ".c") for n in names)]
    for name in sorted(names):
        top = name.partition("/")[0]
        if not (top == "oxillama" or top.endswith(".dist-info") or GRAFTED.fullmatch(name)):
            found.append(f"wheel installs {name} beside the package")
        if name.endswith((".c", ".pyx", ".o", ".pyc", ".md")) or name.startswith("oxillama/shipped/train"):
            found.append(f"wheel holds {name}, which is not needed at run time")
    for licence in ("LICENSE", "NOTICE"):
        if not any(n.endswith(f"/{licence}") for n in names):
            found.append(f"wheel lacks {licence}")
    return found


def source_digest(tree: Path) -> str:
    """As setup.py writes it into a wheel."""
    spec = importlib.util.spec_from_file_location("oxillama_setup", tree / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.source_digest()


def wrong_in_bill(wheel: Path, digest: str) -> list[str]:
    """What is wrong with the bill of materials (CycloneDX, PEP 770)."""
    with zipfile.ZipFile(wheel) as archive:
        bills = [n for n in archive.namelist() if n.endswith(".dist-info/sboms/oxillama-cpu.cdx.json")]
        if len(bills) != 1:
            return [f"{len(bills)} bills of materials"]
        bill = json.loads(archive.read(bills[0]))
    found = [] if (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6") else ["a bill of another format"]
    said = [p["value"] for p in bill["metadata"]["component"]["properties"]]
    if said != [digest]:
        found.append(f"made of other sources: {said} and not {digest}")
    models = {c["name"] for c in bill["components"] if c["type"] == "machine-learning-model"}
    if models != {"default.gguf", "default-draft.gguf"}:
        found.append(f"the bill lists the models {sorted(models)}")
    return found


def wrong_with(wheel: Path, tree: Path, digest: str) -> list[str]:
    names = in_wheel(wheel)
    found = wrong_in_wheel(names, tree) + wrong_in_bill(wheel, digest)
    grafted = [n for n in names if GRAFTED.fullmatch(n)]
    if not re.search(r"-linux_\w+\.whl$", wheel.name) and len(grafted) != 1:
        found.append(f"has the libraries {grafted}, not one of OpenMP")
    if wheel.stat().st_size > MOST_BYTES:
        found.append(f"has {wheel.stat().st_size:,} bytes, more than {MOST_BYTES:,}")
    return [f"{wheel.name}: {wrong}" for wrong in found]


def main() -> None:
    tree, dist = Path(sys.argv[1]), Path(sys.argv[2])
    (source,), wheels = dist.glob("*.tar.gz"), sorted(dist.glob("*.whl"))
    digest = source_digest(tree)
    found = [f"source package lacks {n}" for n in sorted(wanted_sources(tree) - in_source_package(source))]
    found += [wrong for wheel in wheels for wrong in wrong_with(wheel, tree, digest)]
    if found or not wheels:
        sys.exit("\n".join(found) or "there is no wheel")
    print(*(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB" for path in (source, *wheels)), sep="\n")


if __name__ == "__main__":
    main()
