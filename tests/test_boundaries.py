"""Imports point one way, and the method loads no framework. Each check is shown to be able to fail."""

import ast
import sys
import tokenize
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.imports import ENGINES, FRAMEWORKS, PACKAGE, REPOSITORY, loaded_by

sys.path.insert(0, str(REPOSITORY / "tools"))
from import_diagram import Diagram, import_diagram  # noqa: E402

METHOD = sorted(
    path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
    for path in (PACKAGE / "method").rglob("*.py")
    if path.stem != "__init__"
)

# The rooms from the ground up. A room imports rooms of lower floors only; those of one floor do not know each other.
FLOORS = (
    {"method"},
    {"config", "machine"},
    {"rewards", "problems"},
    {"runs"},
    {"comparison"},
    {"stack", "evaluation", "view", "operations"},
    # a port uses the public names alone, as a loop of yours does
    {"cli", "trl", "verl"},
)
MOST_ARROWS = 40
# estimators and losses of other papers included; tokens, since lines would press the code together
MOST_TOKENS_OF_THE_METHOD = 49_500
# Inside the method: what is on a line imports those above it.
IN_METHOD = (
    {"errors"},
    {"types", "open_table"},
    {"checks", "values"},
    {"core"},
    {"settings"},
    {"prompts"},
    {"history"},
    {"r3"},
)
# Inside the graders of answers.
IN_ANSWERS = (
    {"text", "request"},
    {"amounts"},
    {"reading"},
    {"formulas", "grading"},
    {"kinds", "physical_amounts"},
    {"guards", "references", "exact", "tasks"},
    {"mathematics", "reasoning_gym_tasks"},
)
MOST_ARROWS_IN_ANSWERS = 40
# Files outside the stack that hold an engine, with what they may import for it.
EXCEPTIONS = {
    "machine/ray_start": {"ray"},
    "machine/cpu": ENGINES,
    "machine/expert_weights": {"vllm"},
    "evaluation/engine": {"vllm"},
    "operations/cluster/ray_on_nodes": {"ray"},
    "operations/cluster/ray_jobs": {"ray"},
}


def test_the_method_loads_no_framework():
    """All of its files in one process; torch is loaded where tokens count, and by nothing else."""
    with_torch = {"method.core.entropy"}
    pure = [f"r3_openrlhf.{name}" for name in METHOD if name not in with_torch]
    assert len(pure) > 25
    assert loaded_by(f"import {', '.join(pure)}", FRAMEWORKS | {"torch"}) == set()
    assert loaded_by("import r3_openrlhf.method.core.entropy", FRAMEWORKS) == set()


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


FLOORS_OF_ROOMS = {"method": IN_METHOD, "rewards/answers": IN_ANSWERS}


def violations(package: Path) -> list[str]:
    """One line per import of an engine outside the stack, or of a higher part inside a room with floors."""
    lines = []
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package).with_suffix("").as_posix()
        forbidden = forbidden_engines(place)
        for name in sorted(imported_names(path.read_text())):
            if name.split(".")[0] in forbidden:
                lines.append(f"{place} imports {name}; only the stack may")
            for arrow in arrows_inside(place, name, package.name):
                if not arrow.points_down:
                    lines.append(f"{place} imports {name}, which stands above it")
    return lines


def forbidden_engines(place: str) -> set[str]:
    """The engines that the file at this place may not import."""
    if place.startswith("stack/"):
        return set()
    forbidden = set(ENGINES)
    for start, allowed in EXCEPTIONS.items():
        if place.startswith(start):
            forbidden -= allowed
    return forbidden


@dataclass(frozen=True)
class Arrow:
    """An import inside a room with floors, from one part of it to another one."""

    importing: str
    imported: str
    points_down: bool


def arrows_inside(place: str, name: str, package: str) -> list[Arrow]:
    """The arrow that an import of a file is inside a room with floors, if it is one."""
    arrows = []
    for room, floors in FLOORS_OF_ROOMS.items():
        prefix = f"{package}.{room.replace('/', '.')}."
        if not place.startswith(f"{room}/") or not name.startswith(prefix):
            continue
        importing = place.removeprefix(f"{room}/").split("/")[0]
        imported = name.removeprefix(prefix).split(".")[0]
        heights = {part: height for height, parts in enumerate(floors) for part in parts}
        if importing != imported and imported in heights:
            is_down = heights.get(importing, 0) > heights[imported]
            arrows.append(Arrow(importing, imported, is_down))
    return arrows


def test_engines_stay_in_the_stack_and_the_method_points_one_way():
    assert violations(PACKAGE) == []


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("method/core/advantages.py", "from r3_openrlhf.method.settings import R3Settings"),
        ("method/core/replay.py", "def late():\n    import r3_openrlhf.method.history.store"),
        ("method/history/store.py", "from r3_openrlhf.method.r3 import R3"),
        ("rewards/answers/reading/scanner.py", "import r3_openrlhf.rewards.answers.kinds.date"),
        (
            "rewards/answers/guards/form.py",
            "from r3_openrlhf.rewards.answers.mathematics import grade",
        ),
        ("machine/processes/pool.py", "def late():\n    from ray import get"),
        ("cli.py", "import vllm"),
        ("evaluation/run.py", "def late():\n    from vllm import LLM"),
        ("evaluation/engine.py", "import ray"),
    ],
)
def test_a_wrong_import_is_found(tmp_path, place, line):
    file = tmp_path / "r3_openrlhf" / place
    file.parent.mkdir(parents=True)
    file.write_text(line)
    assert len(violations(tmp_path / "r3_openrlhf")) == 1


def wrong_arrows(diagram: Diagram, floors=FLOORS) -> list[str]:
    """Every arrow that does not go down. KeyError: a room that has no floor yet."""
    floor_of = {room: number for number, rooms in enumerate(floors) for room in rooms}
    return [
        f"{one} -> {other}"
        for one, other in diagram.rooms.edges
        if floor_of[one] <= floor_of[other]
    ]


def test_every_room_has_its_floor_and_there_is_no_circle():
    diagram = import_diagram(REPOSITORY)
    assert set(diagram.rooms) == set().union(*FLOORS)
    assert wrong_arrows(diagram) == []
    assert diagram.circles == []
    assert diagram.rooms.number_of_edges() <= MOST_ARROWS


def test_the_graders_have_a_floor_each_and_few_arrows():
    answers = PACKAGE / "rewards/answers"
    arrows = set()
    parts = set()
    for path in answers.rglob("*.py"):
        place = path.relative_to(PACKAGE).with_suffix("").as_posix()
        parts.add(place.removeprefix("rewards/answers/").split("/")[0])
        for name in imported_names(path.read_text()):
            arrows |= set(arrows_inside(place, name, PACKAGE.name))
    assert parts - {"__init__"} == set().union(*IN_ANSWERS)
    assert 30 < len(arrows) <= MOST_ARROWS_IN_ANSWERS


def test_the_method_can_be_read_in_an_afternoon():
    tokens = 0
    for path in (PACKAGE / "method").rglob("*.py"):
        with path.open("rb") as file:
            tokens += sum(1 for _ in tokenize.tokenize(file.readline))
    assert tokens <= MOST_TOKENS_OF_THE_METHOD


def test_circles_and_arrows_upwards_are_found(tmp_path):
    """Two files of one room in a circle, and a room that knows one above it."""
    for place, source in {
        "__init__.py": "",
        "cellar.py": "def late():\n    from house.attic import left",
        "attic/__init__.py": "",
        "attic/left.py": "import house.attic.box.right",
        "attic/box/__init__.py": "",
        "attic/box/right.py": "from house.attic.left import x",
    }.items():
        file = tmp_path / "house" / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    diagram = import_diagram(tmp_path, "house")
    assert diagram.circles == [["house.attic.box.right", "house.attic.left"]]
    assert wrong_arrows(diagram, ({"cellar"}, {"attic"})) == ["cellar -> attic"]
    assert diagram.floors == [["attic"], ["cellar"]]
