"""From tables with level columns to shards that the trainer reads, with the jobs for TreeOfLife and iNaturalist."""

import json
from pathlib import Path
from typing import Any

import pytest

from hypergrit_common.errors import UserError
from pipeline.config import load_config
from pipeline.grit import main
from pipeline.read.config import ReadConfig
from pipeline.read.plan import plan_shards
from pipeline.read.rows import read_levels
from tests.pipeline.jobs import jsons
from tests.pipeline.stages.download.server import jpeg
from tests.trainer.data.loading import small_loader, take

JOBS = Path(__file__).resolve().parents[2] / "jobs" / "pipeline"
RANKS = ("kingdom", "phylum", "class", "order", "family", "genus", "species")
ROBIN = ("Animalia", "Chordata", "Aves", "Passeriformes", "Parulidae", "Setophaga", "ruticilla")
FERN = ("Plantae", "Tracheophyta", "", "Polypodiales", "", "", "")


def write_table(folder: Path) -> Path:
    """A table in the layout of TreeOfLife's catalogue, with the files of its images."""
    lines = [",".join(("treeoflife_id", *RANKS, "common", "image_path"))]
    for i, chain in enumerate((ROBIN, FERN, ("",) * 7)):
        (folder / f"{i}.jpg").write_bytes(jpeg(i))
        lines.append(",".join((f"id{i}", *chain, "", f"{i}.jpg")))
    path = folder / "catalog.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_inaturalist(folder: Path) -> Path:
    """Annotations of iNaturalist with one image, whose path names its species."""
    path = "train/00042_" + "_".join(ROBIN)
    (folder / path).mkdir(parents=True)
    (folder / path / "a.jpg").write_bytes(jpeg())
    table = {
        "info": {"year": 2021},
        "images": [{"id": 7, "width": 80, "height": 60, "file_name": f"{path}/a.jpg", "license": 1}],
        "categories": [{"id": 42, "name": "Setophaga ruticilla"}],
    }
    (folder / "train.json").write_text(json.dumps(table), encoding="utf-8")
    return folder / "train.json"


def run(name: str, source: Path, output: Path) -> list[dict[str, Any]]:
    """Run a job of this repository in this process; the JSON of its training samples."""
    arguments = [f"input={source}", f"output={output}", f"read.image_roots=[{source.parent}]", "ray.runner=local"]
    assert main([str(JOBS / name), *arguments, "download.resize.mode=none"]) == 0
    return [sample for shard in sorted((output / "train").glob("*.tar")) for sample in jsons(shard)]


def test_the_levels_of_a_table_reach_the_batches_of_the_trainer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    robin, fern = run("treeoflife.yaml", write_table(tmp_path), tmp_path / "out")
    assert "euclip, taxonomy; not: " in capsys.readouterr().out
    path = "Animalia Chordata Aves Passeriformes Parulidae Setophaga ruticilla"
    assert robin["levels"] == [path[: path.index(name) + len(name)] for name in ROBIN]
    assert robin["caption"] == path
    assert fern["levels"] == ["Plantae", "Plantae Tracheophyta", None, fern["caption"], None, None, None]
    (batch,) = take(small_loader(tmp_path / "out" / "train", batch=2, needs=frozenset({"levels"})), 1)
    levels = batch["levels"]
    assert levels.owner is not None
    assert levels.depth is not None
    first, second = (levels.depth[levels.owner == i].tolist() for i in (0, 1))
    assert sorted((first, second)) == [[0, 1, 2, 3, 4, 5, 6], [0, 1, 3]]


def test_the_levels_of_inaturalist_are_in_the_path_of_its_images(tmp_path: Path) -> None:
    (sample,) = run("inaturalist.yaml", write_inaturalist(tmp_path), tmp_path / "out")
    assert sample["levels"][1:3] == ["Animalia Chordata", "Animalia Chordata Aves"]
    assert sample["levels"][-1] == sample["caption"] == " ".join(ROBIN)


def test_a_binomial_name_repeats_no_genus_and_names_stand_alone_on_request() -> None:
    record = {"genus": "Setophaga", "species": "Setophaga ruticilla"}
    assert read_levels(record, ReadConfig(levels="genus,species")) == ["Setophaga", "Setophaga ruticilla"]
    alone = ReadConfig(levels="genus|species")
    assert read_levels(record, alone) == ["Setophaga", "Setophaga ruticilla"]
    assert read_levels({"genus": "", "species": 3}, alone) == [None, "3"]


def test_a_wrong_pattern_and_a_missing_column_are_named(tmp_path: Path) -> None:
    for text in ("", "genus,,species", "path:a", "genus,species:(a)", ":(a)"):
        with pytest.raises(UserError, match="give columns, such as"):
            ReadConfig(levels=text)
    with pytest.raises(UserError, match="unterminated"):
        ReadConfig(levels="path:(a")
    source = write_table(tmp_path)
    source.write_text(source.read_text("utf-8").replace("genus,", "group,"), encoding="utf-8")
    arguments = [f"input={source}", f"output={tmp_path / 'out'}", f"read.image_roots=[{tmp_path}]"]
    config = load_config([str(JOBS / "treeoflife.yaml"), *arguments])
    with pytest.raises(UserError, match=r"no column 'genus', which read.levels names"):
        plan_shards(config.input, 10, None, config.read)
