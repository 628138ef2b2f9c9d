"""Replace a name of another's module right after its import. Site-packages are not edited."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Mapping


def patch_after_import(patches: Mapping[str, Callable]) -> None:
    """From now on each of `patches` (name of a module -> a function of it) is called when its
    module has been executed; at once where that is so already."""
    sys.meta_path.insert(0, _PostImport(patches))
    for name, patch in patches.items():
        if name in sys.modules:
            patch(sys.modules[name])


class _PostImport(importlib.abc.MetaPathFinder):
    def __init__(self, patches: Mapping[str, Callable]) -> None:
        self._patches = patches
        self._busy: set[str] = set()

    def find_spec(self, name, path=None, target=None):
        if name not in self._patches or name in self._busy:
            return None
        self._busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy.discard(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            self._patches[name](module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one loader
        return spec
