"""Each model is trained on shards that the pipeline wrote for it, by the commands of the docs with small settings."""

import contextlib
import io
import json
from pathlib import Path

import pytest
import torch

from pipeline import grit
from schemas.training import MODEL_NEEDS
from tests.jobs.test_taxonomies import write_table
from tests.pipeline.conftest import tars  # noqa: F401 (a fixture)
from tests.pipeline.here import running_here
from tests.trainer.small_run import SMALL
from trainer import train
from trainer.models.registry import MODELS, build_model

JOBS = Path(__file__).resolve().parents[2] / "jobs"
COMMANDS = {
    None: [str(JOBS / "pipeline" / "pairs.yaml")],
    "parse": [str(JOBS / "pipeline" / "pairs.yaml"), "parse.model=en_core_web_sm", "formats=[train,grit,arrow]"],
    "boxes": [],
    "levels": [str(JOBS / "pipeline" / "treeoflife.yaml")],
}
"""What a model needs -> the arguments of `hypergrit run` that make its shards (docs/pipeline.md, docs/models.md)."""
STEPS = 20


def test_the_needs_of_each_model_are_those_of_its_class() -> None:
    assert set(MODEL_NEEDS) == set(MODELS)
    for name, need in MODEL_NEEDS.items():
        with torch.device("meta"):
            assert build_model(name).needs - {"queries"} == ({need} if need else set())  # the loader makes queries


@pytest.fixture(scope="module")
def shards(tars: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str | None, Path]:  # noqa: F811
    folder = tmp_path_factory.mktemp("shards")
    table = write_table(folder)
    for need, arguments in COMMANDS.items():
        values = [f"output={folder / str(need)}", "rows_per_shard=4", "ray.runner=local"]
        values += [f"input={table}", f"read.image_roots=[{folder}]"] if need == "levels" else [f"input={tars}"]
        with running_here(), contextlib.redirect_stdout(io.StringIO()) as printed:
            assert grit.main([*arguments, *values]) == 0
        line = printed.getvalue().partition("can train: ")[2].splitlines()[0]
        able = line.partition("; not: ")[0].split(", ")
        assert {name for name, needed in MODEL_NEEDS.items() if needed in (None, need)} <= {*able}
    return {need: folder / str(need) / ("grit" if need is None else "train") for need in COMMANDS}


@pytest.mark.rest
@pytest.mark.parametrize("name", MODEL_NEEDS)
def test_model_trains_for_twenty_steps_from_shards_of_the_pipeline(
    name: str, shards: dict[str | None, Path], tmp_path: Path
) -> None:
    merges = tmp_path / "merges.txt"
    merges.write_text("#version: 0.2\n")
    job = JOBS / "train" / f"{name}.yaml"
    small = [item for item in SMALL if not item.startswith(("model_name", "steps", "batch_size"))]
    values = [
        f"shards={shards[MODEL_NEEDS[name]]}",
        f"output={tmp_path / 'run'}",
        f"tokenizer={merges}",
        "batch_size=4",
    ]
    arguments = [str(job)] if job.is_file() else [f"model_name={name}"]
    assert train.main([*arguments, *small, *values, f"steps={STEPS}"]) == 0
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert max(step["step"] for step in steps) == STEPS
    assert (tmp_path / "run" / "model").is_dir()
