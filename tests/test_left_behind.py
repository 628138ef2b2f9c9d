"""The guard of tests/conftest.py, beside an import that happens while it looks."""

import gc
import sys
import types

import pytest

from tests import left_behind


class _ImportsAtItsEnd:
    """Garbage in a cycle: its end adds a module and a name, and leaves the next of its kind, to be collected in turn."""

    def __init__(self, place: types.ModuleType, left: int):
        self.cycle, self.place, self.left = self, place, left

    def __del__(self):
        if self.place.__name__ not in sys.modules:
            return  # the test is over
        sys.modules[f"vllm.at_the_end_{self.left}"] = types.ModuleType("vllm.at_the_end")
        setattr(self.place, f"at_the_end_{self.left}", print)
        setattr(self.place.Known, f"at_the_end_{self.left}", print)
        if self.left:
            _ImportsAtItsEnd(self.place, self.left - 1)


@pytest.fixture
def library():
    """A patched library with a class, both of many names; everything the guard reads grows while something is allocated."""

    def known():
        pass

    names = {f"known_{number}": known for number in range(100)}
    module = types.ModuleType("vllm.of_this_test")
    vars(module).update(names, Known=type("Known", (), {"__module__": module.__name__, **names}))
    limits = gc.get_threshold()
    sys.modules[module.__name__] = module
    gc.collect()  # empties the interpreter's own store of tuples, too
    _ImportsAtItsEnd(module, 1000)
    gc.set_threshold(1)
    yield module
    gc.set_threshold(*limits)
    del sys.modules[module.__name__]
    for name in [name for name in sys.modules.copy() if name.startswith("vllm.at_the_end_")]:
        del sys.modules[name]


@pytest.mark.parametrize("look", [lambda module: left_behind.code_of_libraries(), left_behind._of_module])
def test_what_is_imported_while_it_looks_does_no_harm(library, look):
    found = look(library)

    assert {"vllm.of_this_test.known_99", "vllm.of_this_test.Known.known_99"} <= found.keys()
    assert "vllm.at_the_end_1000" in sys.modules
