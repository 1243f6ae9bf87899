"""Sources are left alone, also where links give them other names."""

from pathlib import Path

import pytest

from pipeline.commands import rewrite
from pipeline.output.store import Store
from pipeline.run.provenance import place_of
from tests.pipeline.commands.derive.outputs import make_output, random_shards
from tests.pipeline.jobs import hash_output

LOCAL = ("ray.runner=local", "ray.cpu_workers=1")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An output, with a link to it."""
    make_output(tmp_path / "a", random_shards(2, 1))
    (tmp_path / "link").symlink_to("a")
    return tmp_path / "a"


@pytest.mark.parametrize(
    ("name", "output"), [("a", "link"), ("link", "a"), ("a", "link/new"), ("a", "link/train"), ("link", "")]
)
def test_an_output_that_is_its_source_or_nested_is_refused(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, output: str
) -> None:
    before = {path: path.stat().st_mtime_ns for path in source.rglob("*")}
    arguments = [f"source={tmp_path / name}", f"output={tmp_path / output}", "overwrite=true", "score.min_score=0.95"]
    assert rewrite.main([*arguments, *LOCAL]) == 2
    assert "give another output=, since sources are left alone" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in source.rglob("*")} == before


def test_a_source_that_is_given_twice_by_two_names_is_refused(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"source={source}", f"source={tmp_path / 'link'}", f"output={tmp_path / 'new'}", *LOCAL]
    assert rewrite.main(arguments) == 2
    assert f"source={tmp_path / 'link'} is given twice" in capsys.readouterr().err


def test_an_output_beside_its_source_with_a_name_that_begins_alike_is_another(source: Path, tmp_path: Path) -> None:
    assert rewrite.main([f"source={source}", f"output={tmp_path / 'ab'}", *LOCAL]) == 0
    assert len(hash_output(tmp_path / "ab")) == len(hash_output(source))


def test_places_in_object_stores_are_their_addresses() -> None:
    assert place_of(Store("memory://bucket/a")) == "memory:///bucket/a/"
