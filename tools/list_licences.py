"""Write dev/licences.md: the licence of every installed dependency, by its own metadata.

python tools/list_licences.py            writes the page
python tools/list_licences.py --check    ends with 1 if the page lacks a dependency that pyproject.toml names
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
PAGE = REPO / "dev" / "licences.md"
HEAD = """# Licences of the dependencies

`python tools/list_licences.py` writes this page from the packages' own metadata, for the versions of `constraints.txt`.
pip installs them beside cleanpairs. THIRD_PARTY.md lists what ships with it.
"""


def name_of(requirement: str) -> str:
    """The package of a requirement, as package indexes spell it: small letters, dashes."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def declared() -> dict[str, list[str]]:
    """Group -> packages, of pyproject.toml: ``core`` and the extras."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"core": project["dependencies"], **project["optional-dependencies"]}
    return {group: sorted({name_of(line) for line in lines}) for group, lines in groups.items()}


def licence_of(found: Distribution) -> str:
    """The expression, else the classifiers, else the first line of the licence field."""
    metadata = found.metadata
    expression = metadata.get("License-Expression")
    if expression:
        return str(expression)
    prefix = "License :: "
    classes = [c.rsplit(" :: ", 1)[-1] for c in metadata.get_all("Classifier") or [] if c.startswith(prefix)]
    classes = [c for c in classes if c != "OSI Approved"]
    if classes:
        return ", ".join(sorted(classes))
    line = str(metadata.get("License") or "").strip().splitlines()
    return line[0][:80] if line and line[0] != "UNKNOWN" else "not stated; see the package"


def page() -> str:
    """The whole page."""
    lines, shown = [HEAD], set()
    for group, packages in declared().items():
        rows = []
        for package in packages:
            if package in shown:
                continue
            shown.add(package)
            try:
                found = distribution(package)
            except PackageNotFoundError:
                rows.append(f"| {package} | | not installed where this page was made |")
                continue
            rows.append(f"| {package} | {found.version.split('+')[0]} | {licence_of(found)} |")
        if rows:
            title = "Core" if group == "core" else f"Extra `{group}`"
            lines += [f"\n## {title}\n", "| package | version | licence |", "|---|---|---|", *rows]
    pinned = (REPO / "constraints.txt").read_text(encoding="utf-8").splitlines()
    rest = sorted({name_of(line) for line in pinned if line and line[0] not in "#-"} - shown)
    rows = []
    for package in rest:
        try:
            found = distribution(package)
        except PackageNotFoundError:
            continue
        rows.append(f"| {package} | {found.version.split('+')[0]} | {licence_of(found)} |")
    lines += ["\n## What these bring with them\n", "| package | version | licence |", "|---|---|---|", *rows]
    return "\n".join(lines) + "\n"


def missing(text: str) -> list[str]:
    """Declared packages that the page does not list."""
    listed = set(re.findall(r"^\| ([a-z0-9-]+) \|", text, flags=re.MULTILINE))
    return sorted({name for names in declared().values() for name in names} - listed)


def main() -> int:
    if "--check" in sys.argv:
        lacking = missing(PAGE.read_text(encoding="utf-8"))
        if lacking:
            print(f"{PAGE} lacks {', '.join(lacking)}: python tools/list_licences.py")
        return bool(lacking)
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
