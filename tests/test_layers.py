"""Imports go down only: the table of dev/architecture.md against the source, by its syntax tree."""

import ast
import re
from pathlib import Path

import cleanpairs
from tests.helpers import calls_of, tree_of

REPO = Path(__file__).resolve().parents[1]
PACKAGE = Path(cleanpairs.__file__).resolve().parent


def levels() -> dict[str, int]:
    """Room -> level, of the table in dev/architecture.md."""
    text = (REPO / "dev" / "architecture.md").read_text(encoding="utf-8")
    found: dict[str, int] = {}
    for level, rooms in re.findall(r"^\| (\d+) \| ([^|]+) \|", text, flags=re.MULTILINE):
        for room in re.findall(r"`([\w]+)(?:\.py|/)`", rooms):
            assert room not in found, f"{room} stands in the table twice"
            found[room] = int(level)
    return found


def modules() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if "_recipes" not in p.parts and p != PACKAGE / "__init__.py")


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[tuple[int, str]]:
    """(Line, imported room) of every import of the package, inside functions too, but for types only."""
    unseen: set[ast.AST] = set()
    found: set[tuple[int, str]] = set()
    for node in ast.walk(tree_of(path)):  # what is outer comes before what is inner
        names: list[str] = []
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            unseen.update(inner for statement in node.body for inner in ast.walk(statement))
        elif node in unseen:
            continue
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {(getattr(node, "lineno", 0), name) for name in names}
    for called, call in calls_of(path):
        if called.endswith("import_module"):
            named = [a.value for a in call.args if isinstance(a, ast.Constant)]
            found |= {(call.lineno, str(name)) for name in named}
    rooms = {(line, name.split(".")[1]) for line, name in found if name.startswith("cleanpairs.")}
    return {(line, room) for line, room in rooms if not room.startswith("__version")}


def test_imports_go_down_only() -> None:
    level, seen, wrong = levels(), 0, []
    assert {room_of(p) for p in modules()} == set(level)
    assert imports(PACKAGE / "__init__.py") == set()
    home = {"CRCL", "InfoNCE", "PairCleaner", "Pairs", "RepairPlan", "CleanpairsError", "load_pairs"}
    for path in modules():
        mine = room_of(path)
        for line, theirs in imports(path):
            assert theirs in level or theirs not in home, f"{path}:{line}: import {theirs} from its own module"
            seen += theirs != mine
            if theirs != mine and level[theirs] >= level[mine]:
                wrong.append(f"{path.relative_to(REPO)}:{line}: {mine} ({level[mine]}) -> {theirs} ({level[theirs]})")
    assert wrong == []
    assert seen > 100  # it did sweep the package


def test_the_trainer_alone_steps_an_optimizer() -> None:
    assert [room_of(path) for path in modules() if "optimizer.step(" in path.read_text(encoding="utf-8")] == ["trainer"]


def test_only_atomic_renames() -> None:
    for path in modules():
        if path == PACKAGE / "data" / "atomic.py" or path.name == "run.py":  # a run keeps the old one
            continue
        calls = calls_of(path)
        assert not {name for name, _ in calls} & {"os.rename", "os.replace", "shutil.move"}, path
        of_paths = [name for name, n in calls if len(n.args) == 1 and not n.keywords]  # str.replace takes two
        assert not [name for name in of_paths if name.endswith((".rename", ".replace"))], path
