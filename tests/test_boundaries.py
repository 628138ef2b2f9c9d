"""Imports point one way, and the pure part loads no framework. Each check is shown to be able to fail."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "r3_openrlhf"
sys.path.insert(0, str(REPOSITORY / "tools"))
from import_diagram import Diagram, import_diagram  # noqa: E402

FRAMEWORKS = {"ray", "vllm", "deepspeed", "openrlhf", "hydra", "omegaconf", "transformers"}
ENGINES = {"ray", "vllm", "deepspeed", "openrlhf"}
CORE = sorted(path.stem for path in (PACKAGE / "core").glob("*.py") if path.stem != "__init__")

# The rooms from the ground up. A room imports rooms of lower floors only.
FLOORS = (
    {"types", "errors"},
    {"open_table"},
    {"answer_tasks"},
    {"core", "config", "access", "ports", "ray_temporary", "grading.answers"},
    {"agents", "ray_start"},
    {"config_loading", "cpu_stack", "history", "models", "grading.processes"},
    {"problems", "runs", "grading", "method", "agents.processes"},
    {"planning"},
    {"__init__"},  # the public names; the rooms above take the version from it
    {"openrlhf_adapter", "evaluation", "comparison", "reward_server", "lab", "doctor", "cluster", "attack", "viewer"},
    {"cli"},
)
# What each part may import of this project. A part that is not named may import any part but the siblings.
MAY_IMPORT = {
    "types": set(),
    "errors": set(),
    "core": {"types", "errors"},
    "open_table": {"errors"},
    "answer_tasks": {"errors", "open_table"},
    "config": {"types", "errors", "answer_tasks"},
    "access": {"errors"},
    "ray_start": {"ports"},
    "history": {"types", "errors", "core", "config"},
    "agents": {"types", "errors", "core", "config", "grading"},
    "grading": {"types", "errors", "core", "config", "open_table", "answer_tasks"},
    "cluster": {
        "types",
        "errors",
        "ports",
        "ray_start",
        "ray_temporary",
        "config",
        "config_loading",
        "history",
        "runs",
    },
    "planning": {"errors", "config", "config_loading", "history", "method", "models"},
    "comparison": {"errors", "config", "config_loading", "runs"},
    "viewer": {
        "types",
        "errors",
        "access",
        "core",
        "config",
        "answer_tasks",
        "agents",
        "models",
        "history",
        "problems",
        "runs",
        "grading",
    },
}
# Files outside openrlhf_adapter that hold an engine, with what they may import for it.
EXCEPTIONS = {
    ("ray_start",): {"ray"},
    ("evaluation", "engine"): {"vllm"},
    ("cluster", "ray_on_nodes"): {"ray"},
    ("cluster", "ray_jobs"): {"ray"},
}
SIBLINGS = {"openrlhf_adapter", "reward_server", "evaluation"}  # only the command line knows more than one of them


def loaded_by(statement: str, modules: set[str]) -> set[str]:
    """Which of `modules` does this import drag in?"""
    code = f"{statement}; import sys; print(*[m for m in {sorted(modules)} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("module", CORE)
def test_core_loads_no_framework(module):
    unwanted = FRAMEWORKS if module in ("entropy", "chunked_logprobs") else FRAMEWORKS | {"torch"}
    assert loaded_by(f"import r3_openrlhf.core.{module}", unwanted) == set()


def test_the_check_can_fail():
    assert loaded_by("import omegaconf, json", FRAMEWORKS | {"json"}) == {"omegaconf", "json"}


def imported_names(source: str) -> set[str]:
    """Every module that a file imports, at its top or inside a function: "a.b" and, for `from a import b`, "a.b" too."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports in this project are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def violations(package: Path) -> list[str]:
    """One line per import that points the wrong way."""
    found = []
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package).with_suffix("").parts
        part = place[0]
        for name in sorted(imported_names(path.read_text())):
            if any(name == allowed or name.startswith(f"{allowed}.") for allowed in EXCEPTIONS.get(place, ())):
                continue
            top, *rest = name.split(".")
            if top in ENGINES and part not in ("openrlhf_adapter", "cpu_stack"):
                found.append(f"{'/'.join(place)} imports {name}; only openrlhf_adapter and cpu_stack may")
            if top != package.name or not rest or rest[0] == part:
                continue
            if part in MAY_IMPORT and rest[0] not in MAY_IMPORT[part]:
                found.append(f"{'/'.join(place)} imports {name}; {part} may not")
            elif rest[0] in SIBLINGS and part != "cli":
                found.append(f"{'/'.join(place)} imports {name}; only cli may")
    return found


def test_imports_point_one_way():
    assert violations(PACKAGE) == []


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("core/advantages.py", "from r3_openrlhf.config import R3Config"),
        ("core/advantages.py", "from r3_openrlhf import config"),
        ("core/replay.py", "def late():\n    import r3_openrlhf.history.store"),
        ("types.py", "from r3_openrlhf.errors import R3Error"),
        ("history/store.py", "import r3_openrlhf.openrlhf_adapter.convert"),
        ("grading/processes/pool.py", "import r3_openrlhf.history"),
        ("grading/processes/pool.py", "def late():\n    from ray import get"),
        ("problems/sources.py", "from r3_openrlhf.openrlhf_adapter.arguments import platform_of"),
        ("reward_server/app.py", "from r3_openrlhf.openrlhf_adapter import convert"),
        ("cli.py", "import vllm"),
        ("evaluation/run.py", "def late():\n    from vllm import LLM"),
        ("evaluation/engine.py", "import ray"),
        ("evaluation/engine.py", "import r3_openrlhf.openrlhf_adapter.launch"),
    ],
)
def test_a_wrong_import_is_found(tmp_path, place, line):
    file = tmp_path / "r3_openrlhf" / place
    file.parent.mkdir(parents=True)
    file.write_text(line)
    assert len(violations(tmp_path / "r3_openrlhf")) == 1


def test_right_imports_are_not_found(tmp_path):
    package = tmp_path / "r3_openrlhf"
    (package / "core").mkdir(parents=True)
    (package / "core" / "groups.py").write_text("import numpy\nfrom r3_openrlhf.core.checks import x\n")
    (package / "cli.py").write_text("from r3_openrlhf.openrlhf_adapter.launch import train\nimport r3_openrlhf\n")
    assert violations(package) == []


def wrong_arrows(diagram: Diagram, floors=FLOORS) -> list[str]:
    """Every arrow that does not go down. KeyError: a room that has no floor yet."""
    floor_of = {room: number for number, rooms in enumerate(floors) for room in rooms}
    return [f"{one} -> {other}" for one, other in diagram.rooms.edges if floor_of[one] <= floor_of[other]]


def test_every_room_has_its_floor_and_there_is_no_circle():
    diagram = import_diagram(REPOSITORY)
    assert set(diagram.rooms) == set().union(*FLOORS)
    assert wrong_arrows(diagram) == []
    assert diagram.circles == []


def test_circles_and_arrows_upwards_are_found(tmp_path):
    """Two files of one room in a circle, and a room that knows one above it; a room inside a room is a room."""
    for place, source in {
        "__init__.py": "",
        "cellar.py": "def late():\n    from house.attic import left",
        "attic/__init__.py": "",
        "attic/left.py": "import house.attic.right",
        "attic/right.py": "from house.attic.left import x",
        "attic/box/__init__.py": "",
        "attic/box/doll.py": "",
        "attic/box/note.py": "import house.attic.box.doll",
    }.items():
        file = tmp_path / "house" / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    diagram = import_diagram(tmp_path, "house")
    assert diagram.circles == [["house.attic.left", "house.attic.right"]]
    floors = ({"__init__", "cellar", "attic.box"}, {"attic"})
    assert set(diagram.rooms) == set().union(*floors)
    assert wrong_arrows(diagram, floors) == ["cellar -> attic"]
    assert diagram.floors == [["__init__", "attic", "attic.box"], ["cellar"]]
