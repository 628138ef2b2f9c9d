"""The page of what works is what happens."""

import pytest

from r3_openrlhf.config.code_tests import read_tests
from tests.docs.pages import REPOSITORY
from tests.works_with import data_sets, models, page


def test_the_page_is_what_happens():
    written = (REPOSITORY / "docs" / "works-with.md").read_text()
    assert written == page(), "write it again: python -m tests.works_with > docs/works-with.md"


@pytest.mark.parametrize("name", data_sets.DATA_SETS)
def test_a_public_data_set_works_or_is_refused_as_expected(name, tmp_path):
    keys = data_sets.DATA_SETS[name][1]
    found = data_sets.outcome(name, tmp_path)
    if keys is None:
        assert found.startswith("refused: data.path ...") and str(tmp_path) not in found
        return
    assert found.startswith("works with" if keys else "works as it is")
    for label in data_sets.load(name, tmp_path, **keys).labels:
        if label.task == "code":
            assert read_tests(label.references[0]).number
        else:
            assert len(label.references[0]) < 20 and "\n" not in label.references[0]


@pytest.mark.parametrize("name", [*models.FAMILIES, *models.WRONG])
def test_a_model_family_works_or_is_refused_as_expected(name, tmp_path):
    found = models.outcome(name, tmp_path / "m")
    how = (
        "refused: "
        if name in models.WRONG
        else "works with"
        if "(base)" in name
        else "works as it is"
    )
    assert found.startswith(how) and str(tmp_path) not in found
    opens = name in ("Qwen3-Thinking", "QwQ") or "Distill" in name and how != "refused: "
    assert ("the prompt opens `<think>`" in found) == opens
