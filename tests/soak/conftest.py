"""Fixtures of the soak tests: input scenes, and uninterrupted runs to compare with."""

from pathlib import Path

import pytest

from demo.world.layout import WorldConfig
from demo.world.scenes import DEMO_SEEDS, make_scene
from pipeline.images import encode_jpeg
from pipeline.output.write.tar import TarWriter
from tests.soak.processes import run
from tests.soak.runs import Reference, job_in_one_process, pipeline_arguments, training_arguments
from trainer import train

N_SCENES = 12


@pytest.fixture(scope="session")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tar of demo scenes."""
    folder = tmp_path_factory.mktemp("tars")
    with (folder / "00000.tar").open("wb") as file, TarWriter(file) as tar:
        for i in range(N_SCENES):
            scene = make_scene(DEMO_SEEDS[i], "openmoji", WorldConfig(width=384, height=288))
            tar.add_sample(f"{i:03d}", [("jpg", encode_jpeg(scene.image)), ("txt", scene.caption.encode())])
    return folder


@pytest.fixture(scope="session")
def pipeline_reference(tars: Path, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """An uninterrupted pipeline job."""
    output = tmp_path_factory.mktemp("pipeline") / "output"
    return Reference(output, run(job_in_one_process, pipeline_arguments(tars, output), output.with_suffix(".log")))


@pytest.fixture(scope="session")
def training_reference(pipeline_reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """An uninterrupted training run on the shards of the pipeline job."""
    output = tmp_path_factory.mktemp("training") / "run"
    arguments = training_arguments(pipeline_reference.output / "train", output)
    return Reference(output, run(train.main, arguments, output.with_suffix(".log")))
