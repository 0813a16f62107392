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


def imported_names(path: Path, types: bool = False) -> set[tuple[int, str]]:
    """(Line, dotted name) of every import of the package, inside functions too; for ``types`` only where asked for."""
    unseen: set[ast.AST] = set()
    found: set[tuple[int, str]] = set()
    for node in ast.walk(tree_of(path)):  # what is outer comes before what is inner
        names: list[str] = []
        if not types and isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            unseen.update(inner for statement in node.body for inner in ast.walk(statement))
        elif node in unseen:
            continue
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {(getattr(node, "lineno", 0), name) for name in names if name.startswith("cleanpairs.")}
    for called, call in calls_of(path):
        names = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        if called.endswith("import_module"):
            found |= {(call.lineno, name) for name in names if name.startswith("cleanpairs.")}
    return found


def imports(path: Path) -> set[tuple[int, str]]:
    """(Line, imported room) of :func:`imported_names`."""
    rooms = {(line, name.split(".")[1]) for line, name in imported_names(path)}
    return {(line, room) for line, room in rooms if not room.startswith("__version")}


def test_every_room_has_a_level() -> None:
    assert {room_of(p) for p in modules()} == set(levels())


def test_imports_go_down_only() -> None:
    level, seen, wrong = levels(), 0, []
    for path in modules():
        mine = room_of(path)
        for line, theirs in imports(path):
            if theirs == mine:
                continue
            if theirs not in level:
                home = {"CRCL", "InfoNCE", "PairCleaner", "Pairs", "RepairPlan", "CleanpairsError", "load_pairs"}
                assert theirs not in home, f"{path}:{line}: import {theirs} from its own module"
            seen += 1
            if level[theirs] >= level[mine]:
                wrong.append(f"{path.relative_to(REPO)}:{line}: {mine} ({level[mine]}) -> {theirs} ({level[theirs]})")
    assert wrong == []
    assert seen > 100  # it did sweep the package


def test_the_package_itself_imports_nothing_of_its_own() -> None:
    assert imports(PACKAGE / "__init__.py") == set()


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


def test_no_module_imports_itself_by_way_of_others() -> None:
    paths = {".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts): p for p in modules()}
    names = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    graph = {
        name: {n if n in names else n.rpartition(".")[0] for _, n in imported_names(path, types=True)} & set(names)
        for name, path in names.items()
    }
    assert sum(map(len, graph.values())) > 500
    while leaves := [name for name, below in graph.items() if not below & set(graph)]:
        for name in leaves:
            del graph[name]
    assert not graph, f"in or above a circle: {sorted(graph)[:8]}"
