"""Checks what is in a source package and a wheel: python .ci/check_packages.py TREE DIST

The source package must hold every file of the tree that a build, a test run or a reader needs; the wheel what users
need at run time, and nothing else.
"""

import sys
import tarfile
import zipfile
from pathlib import Path

FOLDERS = ("oxillama", "csrc", "tests", "asv_benchmarks")
ROOT_FILES = {"setup.py", "pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in"}
BUILT = (".so", ".o", ".pyc")


def wanted_sources(tree: Path) -> set[str]:
    files = {p.relative_to(tree) for folder in FOLDERS for p in (tree / folder).rglob("*") if p.is_file()}
    hidden = {f for f in files if any(part.startswith(".") for part in f.parts)}
    return {str(f) for f in files - hidden if f.suffix not in BUILT} | ROOT_FILES


def in_source_package(path: Path) -> set[str]:
    with tarfile.open(path) as archive:
        return {m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()}


def in_wheel(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


def wrong_in_wheel(names: set[str], tree: Path) -> list[str]:
    wanted = {"oxillama/py.typed", "oxillama/shipped/default.gguf", "oxillama/shipped/default-draft.gguf"}
    wanted |= {"oxillama/server/page.html"}
    wanted |= {str(p.relative_to(tree)) for p in (tree / "oxillama").rglob("*.pyi")}
    wanted |= {str(p.relative_to(tree)) for p in (tree / "oxillama").rglob("*.py") if p.parent.name != "shipped"}
    compiled = {str(p.relative_to(tree).with_suffix("")) for p in (tree / "oxillama").rglob("*.pyx")}
    found = [f"wheel lacks {n}" for n in sorted(wanted - names)]
    found += [f"wheel lacks the module {m}" for m in sorted(compiled) if not any(n.startswith(m + ".c") for n in names)]
    for name in sorted(names):
        top = name.partition("/")[0]
        if not (top == "oxillama" or top.endswith(".dist-info")):
            found.append(f"wheel installs {name} beside the package")
        if name.endswith((".c", ".pyx", ".o", ".pyc", ".md")) or name.startswith("oxillama/shipped/train"):
            found.append(f"wheel holds {name}, which is not needed at run time")
    if not any(n.endswith("/LICENSE") for n in names):
        found.append("wheel lacks the licence")
    return found


def main() -> None:
    tree, dist = Path(sys.argv[1]), Path(sys.argv[2])
    (source,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    found = [f"source package lacks {n}" for n in sorted(wanted_sources(tree) - in_source_package(source))]
    found += wrong_in_wheel(in_wheel(wheel), tree)
    if found:
        sys.exit("\n".join(found))
    print(f"{source.name}: {source.stat().st_size / 1e6:.1f} MB; {wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
