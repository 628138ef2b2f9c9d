"""The issue forms are forms: a field without a label, or a key that does not exist, makes a host drop the whole form."""

import yaml

from tests.docs.pages import REPOSITORY

FORMS = sorted(
    path
    for path in (REPOSITORY / ".github" / "ISSUE_TEMPLATE").glob("*.yml")
    if path.stem != "config"
)


def test_the_forms_are_whole():
    assert {form.stem for form in FORMS} == {"problem", "result", "wish"}
    assert "make check" in (REPOSITORY / ".github" / "pull_request_template.md").read_text()
    for form in FORMS:
        content = yaml.safe_load(form.read_text())
        assert set(content) == {"name", "description", "body"}
        fields = content["body"]
        assert len({field["id"] for field in fields}) == len(fields)
        for field in fields:
            assert set(field) <= {"type", "id", "attributes", "validations"}
            assert field["type"] in ("textarea", "input")
            assert (
                set(field["attributes"]) <= {"label", "description", "placeholder", "render"}
                and field["attributes"]["label"]
            )
            assert set(field.get("validations", {})) <= {"required"}
        assert any(field.get("validations", {}).get("required") for field in fields)
