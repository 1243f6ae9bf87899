"""A small input for the main job, and the output of a finished job."""

from pathlib import Path

import cv2
import pytest

from pipeline.output.write.tar import TarWriter

# Modules that need the packages of drawings and of jobs are imported where they are used: a machine with a GPU, on which
# the tests with the marker `gpu` run, may lack them.


@pytest.fixture(scope="session")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a WebDataset tar of nine scenes of the miniature world and one broken image."""
    from demo.world.layout import WorldConfig
    from demo.world.scenes import TEST_SEEDS, make_scene
    from tests.pipeline.jobs import N_SCENES

    folder = tmp_path_factory.mktemp("tars")
    with (folder / "00000.tar").open("wb") as file, TarWriter(file) as tar:
        for i in range(N_SCENES):
            scene = make_scene(TEST_SEEDS.start + i, "openmoji", WorldConfig(width=384, height=288))
            _, jpeg = cv2.imencode(".jpg", scene.image[:, :, ::-1])
            tar.add_sample(f"{i:03d}", [("jpg", jpeg.tobytes()), ("txt", scene.caption.encode())])
        tar.add_sample("broken", [("jpg", b"\xff\xd8\xff no picture"), ("txt", b"a dog on a chair")])
    return folder


@pytest.fixture(scope="session")
def finished(tars: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a finished job with three shards; copy it to change it."""
    from tests.pipeline.jobs import run_job

    output = tmp_path_factory.mktemp("run") / "out"
    assert run_job(tars, output) == 0
    return output
