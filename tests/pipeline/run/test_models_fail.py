"""A model that fails on every row of its first batch stops the job; captions of other languages are named."""

import json
import logging
from pathlib import Path

import pyarrow as pa
import pytest

from hypergrit_common.errors import UserError
from pipeline.faults import TooManyFaultsError
from pipeline.models import check_folder
from pipeline.read.types import ShardPlan
from pipeline.run.steps import Notes, Steps
from pipeline.stages.order import SCHEMAS
from pipeline.stages.stage import TableFunction
from schemas.table import add_columns, kept_indices
from tests.pipeline.output.resume.jobs import configure, provenance_of
from tests.pipeline.rows import table_after

PLAN = ShardPlan(0, 0, 12, ())


class Broken(Steps):
    """Steps whose grounder fails on the rows whose caption begins with `bad`."""

    def make_stage(self, name: str) -> TableFunction:
        def ground(table: pa.Table) -> pa.Table:
            if any(table["caption"][i].as_py().startswith("bad") for i in kept_indices(table)):
                raise IndexError("index out of range in self")
            return add_columns(table, SCHEMAS["ground"], {i: {"boxes": []} for i in kept_indices(table)})

        return ground


def steps(tmp_path: Path, *settings: str) -> Broken:
    config = configure("/pairs", tmp_path / "out", "grounder=models/mine", *settings)
    return Broken(config, provenance_of(config))


@pytest.mark.parametrize("settings", [[], ["max_internal_errors=9"]], ids=str)
def test_a_model_that_fails_on_every_row_is_named_with_the_cause(tmp_path: Path, settings: list[str]) -> None:
    broken = steps(tmp_path, *settings)
    table = table_after("parse", [{"caption": f"bad {i}"} for i in range(12)])
    with pytest.raises(UserError, match=r"^grounder=models/mine fails on every row: IndexError: index out of range"):
        broken.run_stage("ground", PLAN, table, Notes({}))


@pytest.mark.parametrize(("n_good", "n_bad"), [(1, 11), (0, 7)])
def test_few_rows_or_one_that_succeeds_are_no_reason_to_stop(tmp_path: Path, n_good: int, n_bad: int) -> None:
    rows = [{"caption": "good"}] * n_good + [{"caption": f"bad {i}"} for i in range(n_bad)]
    table = table_after("parse", rows)
    _, notes = steps(tmp_path).run_stage("ground", PLAN, table, Notes({}))
    assert len(notes.faults) == n_bad
    with pytest.raises(TooManyFaultsError):
        steps(tmp_path, "max_internal_errors=3").run_stage("ground", PLAN, table, Notes({}))


def write_folder(folder: Path, size: int, n_words: int) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "clip", "text_config": {"vocab_size": size}}))
    (folder / "preprocessor_config.json").write_text("{}")
    words = {"model": {"vocab": {str(i): i for i in range(n_words - 1)}}, "added_tokens": [{"id": n_words - 1}]}
    (folder / "tokenizer.json").write_text(json.dumps(words))
    return folder


def test_a_folder_without_preprocessor_or_with_another_tokenizer_is_named(tmp_path: Path) -> None:
    check_folder("scorer", write_folder(tmp_path / "right", 10, 10))
    wrong = write_folder(tmp_path / "wrong", 10, 12)
    with pytest.raises(UserError, match=r"its tokenizer has 12 words, more than its embedding \(10\)"):
        check_folder("scorer", wrong)
    (wrong / "preprocessor_config.json").unlink()
    with pytest.raises(UserError, match=r"scorer=.*wrong has no preprocessor_config.json"):
        check_folder("scorer", wrong)


GERMAN = "ein altes Haus mit einem roten Dach steht am Ufer eines Sees"
ENGLISH = "an old house with a red roof stands on the shore of a lake"


@pytest.mark.parametrize(("n_german", "is_warned"), [(0, False), (2, False), (8, True)])
def test_captions_of_another_language_than_the_parser_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, n_german: int, is_warned: bool
) -> None:
    found = steps(tmp_path)
    rows = [{"caption": f"{GERMAN if i < n_german else ENGLISH} {i}"} for i in range(40)]
    with caplog.at_level(logging.WARNING, logger="hypergrit"):
        found.warn_about_languages(table_after("parse", rows))
        found.warn_about_languages(table_after("parse", rows))
    expected = ["20 % of 40 captions are not in the language of parse.model=en_hypergrit_web"] * is_warned
    assert [text.partition(",")[0] for text in caplog.messages] == expected
