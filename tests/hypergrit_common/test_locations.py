"""Settings that name several files: every notation of the field, in every key that takes it."""

from pathlib import Path
from typing import Any

import pytest

from hypergrit_common.config import merge
from hypergrit_common.errors import UserError
from hypergrit_common.locations import Locations, count_paths, expand_braces, split_locations
from hypergrit_common.shards import list_shards
from pipeline.config import PipelineConfig
from pipeline.read.listing import list_files
from trainer.analyses.command import ShardsConfig
from trainer.data.config import DataConfig
from trainer.evaluation.held_out.config import HeldOutConfig
from trainer.evaluation.run.config import BenchmarkConfig
from trainer.features.config import FeaturesConfig


@pytest.mark.parametrize(
    ("locations", "expected"),
    [
        ("cc3m, cc12m ,", ["cc3m", "cc12m"]),
        ("s3://a/b::s3://c/d::e", ["s3://a/b", "s3://c/d", "e"]),
        ("{cats,dogs}/{0..3}.tar,birds", ["{cats,dogs}/{0..3}.tar", "birds"]),
        ("zip://*.tar::simplecache::s3://c/d.zip", ["zip://*.tar::simplecache::s3://c/d.zip"]),
        ("a::filecache::gs://b,c", ["a", "filecache::gs://b", "c"]),
        ("a},b", ["a}", "b"]),
        (("x, y", "z::w", " "), ["x, y", "z", "w"]),
        ("", []),
    ],
)
def test_texts_are_divided_outside_braces_and_chains(locations: Locations, expected: list[str]) -> None:
    assert split_locations(locations) == expected


@pytest.mark.parametrize("name", ["cats, dogs", "a::b", "{x,y}"])
def test_a_path_that_exists_is_one_location(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    path = f"{tmp_path}/{name}"
    assert split_locations(path) == [path]
    assert expand_braces(path) == [path]


LARGE = [
    "{0..9999999}.tar",
    "{1..9999999999999999999999}",
    "{1..1" + "0" * 400 + "}",
    "{a..z}" * 5,
    "{c,d}" * 20,
    "{{a..z}{b..y}{c..x}{d..w}{e..v},x}",
]


@pytest.mark.parametrize("text", ["{0..3", "{0..9" + "9" * 5000 + "}", *LARGE])
def test_braces_that_cannot_be_expanded_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"brace|stands for"):
        expand_braces(text)


@pytest.mark.parametrize(
    "text", ["{007..11}/{b..d}", "{a{1..3},b{1..2},,c}", r"\{1..3\}{a,b}", "{abc}{1,2}", "{{4..-1}}"]
)
def test_paths_are_counted_before_they_are_made(text: str) -> None:
    assert count_paths(text) == len(expand_braces(text)) > 1


def folders(root: Path, name: str) -> list[str]:
    """Two folders of 1 and 2 files, and a third whose name has a comma."""
    for folder, n in (("a", 1), ("b", 2), ("c,d", 1)):
        (root / folder).mkdir()
        for i in range(n):
            (root / folder / name.format(i)).write_bytes(b"")
    return sorted(str(path) for path in root.glob("*/*"))


FORMS = [
    "{0}/a,{0}/b,{1}",
    "{0}/a::{0}/b::{1}",
    "{0}/{{a,b}}/*, {1}",
    "{0}/{{a,b}},{1}",
    ("{0}/a", "{0}/b/*", "{0}/c,d"),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_input", [False, True])
def test_pipeline_and_trainer_understand_the_same_forms(tmp_path: Path, form: Locations, is_input: bool) -> None:
    files = folders(tmp_path, "{}.jsonl" if is_input else "{:05d}.tar")
    paths = str(tmp_path), f"{tmp_path}/c?d"
    given = form.format(*paths) if isinstance(form, str) else tuple(item.format(*paths) for item in form)
    assert ([path for path, _ in list_files(given)] if is_input else list_shards(given)) == files


CLASSES = [
    (PipelineConfig, "input", {"output": "o"}), (DataConfig, "shards", {}), (DataConfig, "features", {}),
    (HeldOutConfig, "shards", {}), (BenchmarkConfig, "train_shards", {"model": ["m"], "data": "d", "output": "o"}),
    (FeaturesConfig, "shards", {"model": "m", "output": "o"}), (ShardsConfig, "shards", {"output": "o"}),
]  # fmt: skip


@pytest.mark.parametrize(("cls", "key", "others"), CLASSES, ids=lambda item: getattr(item, "__name__", None))
def test_every_key_takes_a_list(cls: type, key: str, others: dict[str, Any]) -> None:
    config = merge(cls, [(others | {key: ["x, y", "z"]}, "test")])
    assert getattr(config, key) == ("x, y", "z")


def test_weights_count_the_sets_of_a_list() -> None:
    assert DataConfig(shards="a::b", weights=(1, 3)).weights == (1, 3)
    with pytest.raises(UserError, match="for the 3 sets"):
        DataConfig(shards=("a", "b,c", "d"), weights=(1, 3))
