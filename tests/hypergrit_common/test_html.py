"""Pages from templates: texts are escaped, and missing values are errors."""

from pathlib import Path

import jinja2
import pytest

from hypergrit_common.html import render_page


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "page.html").write_text("<p>{{ name | loud }}</p>")
    return tmp_path


def test_markup_and_control_characters_of_texts_are_escaped(folder: Path) -> None:
    page = render_page(folder, "page.html", {"loud": str.upper}, name="<b>\x1b[2j")
    assert page == r"<p>&lt;B&gt;\x1b[2J</p>"


def test_a_value_that_is_not_given_is_an_error(folder: Path) -> None:
    with pytest.raises(jinja2.UndefinedError):
        render_page(folder, "page.html", {"loud": str})
