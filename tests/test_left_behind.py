"""The guard of tests/conftest.py, which looks at what a test file leaves behind."""

import sys
import types

from tests import left_behind


def test_a_patch_and_a_variable_that_stay_are_named(monkeypatch):
    library = types.ModuleType("vllm.of_this_test")
    library.Known = type(
        "Known", (), {"__module__": library.__name__, "method": lambda self: None}
    )
    monkeypatch.setitem(sys.modules, library.__name__, library)
    before = left_behind.process() | left_behind.code_of_libraries()
    assert (
        left_behind.differences(before, left_behind.process() | left_behind.code_of_libraries())
        == []
    )

    monkeypatch.setattr(library.Known, "method", lambda self: 1)
    monkeypatch.setenv("R3_OF_THIS_TEST", "1")
    changed = left_behind.differences(
        before, left_behind.process() | left_behind.code_of_libraries()
    )
    assert changed == ["the environment's R3_OF_THIS_TEST", "vllm.of_this_test.Known.method"]
