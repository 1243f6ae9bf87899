"""The commands on Ray write the bytes that they write on one machine."""

import shutil
import threading
import time
from pathlib import Path

import cv2
import pytest

from hypergrit_common.cli import NOTHING_KEPT
from pipeline.commands import rewrite, takedown
from pipeline.config import PipelineConfig
from pipeline.read.types import Task
from pipeline.run.loop import Run
from pipeline.run.steps import Recipe
from tests.patience import wait_until
from tests.pipeline.commands.derive.outputs import kept, lost, make_output, picture, random_shards
from tests.pipeline.jobs import hash_output
from tests.pipeline.run.on_ray.jobs import kill_worker

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600), pytest.mark.usefixtures("ray_cluster")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two outputs, with a picture of the second in the first, and a folder with an evaluation image."""
    folder = tmp_path_factory.mktemp("sources")
    make_output(folder / "a", random_shards(1, 3))
    make_output(folder / "b", {0: [kept(picture(1001)), lost(), kept(picture(5))], 1: [lost()]})
    (folder / "evaluation").mkdir()
    cv2.imwrite(str(folder / "evaluation/1.png"), picture(5)[:, :, ::-1])
    (folder / "list.txt").write_text("http://x/1001\n")
    return folder


def test_every_command_on_ray_writes_the_bytes_of_one_machine(folder: Path, tmp_path: Path) -> None:
    for runner in ("local", "ray"):
        settings = (f"ray.runner={runner}", *(["ray.cpu_workers=1"] if runner == "local" else []))
        new = tmp_path / runner
        merged = (f"source={new / 'both'}",)
        assert (
            rewrite.main([f"source={folder / 'a'}", f"source={folder / 'b'}", f"output={new / 'both'}", *settings]) == 0
        )
        assert rewrite.main([*merged, f"output={new / 'strict'}", "score.min_score=0.95", *settings]) == NOTHING_KEPT
        unique = [*merged, f"output={new / 'unique'}", "dedupe=[url,bytes,picture]", "dedupe_radius=4"]
        assert rewrite.main([*unique, *settings]) == 0
        assert rewrite.main([*merged, f"output={new / 'shuffled'}", "samples_per_shard=3", *settings]) == 0
        clean = [*merged, f"output={new / 'clean'}", f"against={folder / 'evaluation'}"]
        assert rewrite.main([*clean, *settings]) == 0
        shutil.copytree(folder / "a", new / "taken")
        assert takedown.main([str(new / "taken"), f"list={folder / 'list.txt'}", *settings]) == 0
    for name in ("unique", "shuffled", "clean", "strict", "both", "taken"):
        here, there = hash_output(tmp_path / "local" / name), hash_output(tmp_path / "ray" / name)
        shards = {file for file in here if not file.startswith("_manifests")}  # manifests name the folder of the source
        assert shards
        assert here.keys() == there.keys()
        assert {file: here[file] for file in shards} == {file: there[file] for file in shards}, name


def slow_square(number: int) -> int:
    """Return the square; raise for 5."""
    time.sleep(0.3)
    if number == 5:
        raise ValueError("five")
    return number * number


def kill_a_worker() -> None:
    """Kill a worker of Ray that runs a call, as a machine that ends."""
    wait_until(lambda: kill_worker(0, "ray::run_step"))


@pytest.mark.rest
def test_a_call_whose_worker_is_killed_is_repeated_and_an_exception_is_that_of_its_item() -> None:
    killer = threading.Thread(target=kill_a_worker)
    killer.start()
    run = Run(PipelineConfig(input="in", output="out"))
    results = set(run.results(Recipe.calling(slow_square, "squared"), [Task(i, 1, i) for i in range(12)]))
    killer.join()
    (failed,) = run.failed.values()
    assert (failed["shard"], failed["error"], failed["attempts"]) == (5, "ValueError: five", 3)
    assert results == {i * i for i in range(12) if i != 5}
