import sys

import pytest

pytest.importorskip("py3langid")

from hypergrit_common.errors import UserError
from pipeline.stages.parse.config import ParseConfig
from pipeline.stages.parse.parser import LanguageFilter, share_of_others
from pipeline.stages.parse.stage import Parse
from tests.pipeline.rows import table_after
from tests.pipeline.stages.parse.test_captions import ROWS

OTHERS = [
    ("de", "ein Hund und eine Katze sitzen auf einem alten Sofa"),
    ("fr", "Un chien noir court sur la plage avec une balle"),
    ("es", "Una mujer con un sombrero rojo en la playa"),
    ("nl", "Een hond rent over het strand met een bal"),
    ("ja", "犬が浜辺を走る"),
]


def test_row_in_another_language_is_dropped_as_wrong_language() -> None:
    stage = Parse(ParseConfig(languages=("en",)))
    table = stage(table_after("captions", [{"caption": text} for _, text in OTHERS] + [{"caption": "a dog on grass"}]))
    assert table["reason"].to_pylist() == ["wrong_language"] * 5 + [None]
    assert [detail.split()[0] for detail in table["detail"].to_pylist()[:5]] == [code for code, _ in OTHERS]
    assert all(0.5 <= float(detail.split()[1]) <= 1 for detail in table["detail"].to_pylist()[:5])
    assert table["tokens"].to_pylist()[:5] == [None] * 5


def test_captions_pass_without_the_filter_and_in_one_of_the_languages() -> None:
    rows = [{"caption": text} for _, text in OTHERS[:2]]
    assert "wrong_language" not in Parse(ParseConfig())(table_after("captions", rows))["reason"].to_pylist()
    reasons = Parse(ParseConfig(languages=("en", "de")))(table_after("captions", rows))["reason"].to_pylist()
    assert reasons[0] != "wrong_language"
    assert reasons[1] == "wrong_language"


def test_no_english_caption_of_the_labelled_ones_is_dropped() -> None:
    config = ParseConfig(languages=("en",))
    found = LanguageFilter(config.languages, config.min_language_probability)
    assert [row["caption"] for row in ROWS if found.wrong_language(row["caption"])] == []


def test_share_of_the_warning_is_what_the_filter_drops() -> None:
    texts = [text for _, text in OTHERS]
    assert share_of_others([*texts, "a dog on wet sand runs", "un chien", "a dog"], "en") == (5 / 6, 6)
    share, n = share_of_others([row["caption"] for row in ROWS], "en")
    assert share == 0
    assert n > 300


def test_unknown_language_and_missing_package_are_errors_that_name_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"does not know \['english'\]"):
        LanguageFilter(["english"], 0.5)
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    with pytest.raises(UserError, match="pip install"):
        LanguageFilter(["en"], 0.5)
