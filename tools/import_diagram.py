"""The rooms of the house and which of them know which: rooms, floors, arrows, circles.

    python tools/import_diagram.py                  # this checkout
    python tools/import_diagram.py OTHER_CHECKOUT   # for example one of an earlier commit

A room is what stands at the top of the package: a folder, or a file beside them. An arrow goes from a room to one that it
imports, at the top of a file, inside a function or for a type checker. A room's floor
is one above the highest room that it imports. A circle is a set of files, or of rooms, that import each other.
Files may name each other's types for a type checker: that is no circle of files, but an arrow between rooms.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import grimp
import networkx

PACKAGE = "r3_openrlhf"


@dataclass(frozen=True)
class Diagram:
    """rooms: edges point from a room to those that it imports. circles: of files and of rooms, each a sorted list."""

    rooms: networkx.DiGraph
    floors: list[list[str]]  # lowest first; rooms in a circle stand on one floor
    circles: list[list[str]]


def import_diagram(checkout: Path, package: str = PACKAGE) -> Diagram:
    """The diagram of the package that lies in the folder `checkout`. Nothing of it is run."""
    sys.path.insert(0, str(checkout))
    try:
        graph = grimp.build_graph(package, cache_dir=None)
        at_runtime = grimp.build_graph(
            package, cache_dir=None, exclude_type_checking_imports=True
        )
    finally:
        sys.path.remove(str(checkout))
    files, rooms = networkx.DiGraph(), networkx.DiGraph()
    for name in sorted(graph.modules):
        files.add_node(name)
        room = room_of(name, package)
        if room is not None:
            rooms.add_node(room)
        for imported in sorted(graph.find_modules_directly_imported_by(name)):
            end = room_of(imported, package)
            if room is not None and end is not None and room != end:
                rooms.add_edge(room, end)
        for imported in sorted(at_runtime.find_modules_directly_imported_by(name)):
            files.add_edge(name, imported)
    circles = [
        sorted(part)
        for edges in (files, rooms)
        for part in networkx.strongly_connected_components(edges)
    ]
    return Diagram(
        rooms=rooms,
        floors=floors_of(rooms),
        circles=[circle for circle in circles if len(circle) > 1],
    )


def room_of(module: str, package: str = PACKAGE) -> str | None:
    """ "method" for the file method.core.ranking, "cli" for cli and for __main__, which starts it; None for the package's own
    __init__, the door to the public names."""
    if module == package:
        return None
    room = module.removeprefix(f"{package}.").partition(".")[0]
    return "cli" if room == "__main__" else room


def floors_of(rooms: networkx.DiGraph) -> list[list[str]]:
    condensed = networkx.condensation(rooms)
    height: dict[int, int] = {}
    for part in reversed(list(networkx.topological_sort(condensed))):
        height[part] = 1 + max(
            (height[below] for below in condensed.successors(part)), default=-1
        )
    floors: list[list[str]] = [[] for _ in range(max(height.values()) + 1)]
    for part, floor in height.items():
        floors[floor] += condensed.nodes[part]["members"]
    return [sorted(floor) for floor in floors]


def text_of(diagram: Diagram) -> str:
    rooms = diagram.rooms
    lines = [
        f"rooms {rooms.number_of_nodes()}, floors {len(diagram.floors)}, arrows {rooms.number_of_edges()}, "
        f"circles {len(diagram.circles)}"
    ]
    for number, floor in reversed(list(enumerate(diagram.floors))):
        lines.append(f"\nfloor {number}")
        lines += [
            f"  {room:<20} -> {', '.join(sorted(rooms.successors(room))) or '(nothing)'}"
            for room in floor
        ]
    lines += [f"\ncircle: {' <-> '.join(circle)}" for circle in diagram.circles]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).parents[1])
    print(text_of(import_diagram(parser.parse_args().checkout.resolve())))
