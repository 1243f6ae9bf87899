"""CITATION.cff and the templates of issues: valid, and in step with the package."""

import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
KINDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


def test_the_citation_has_the_version_and_licence_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    assert all({"name"} == author.keys() or "family-names" in author for author in citation["authors"])


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_a_form_of_issues_has_what_github_requires(form: Path) -> None:
    content = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= content.keys()
    fields = [field for field in content["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in content["body"]} <= KINDS
    assert all(field["attributes"]["label"] for field in fields)
    assert len({field["id"] for field in fields}) == len(fields)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_there_are_forms_for_bugs_and_proposals() -> None:
    assert [form.stem for form in FORMS] == ["bug", "feature"]
