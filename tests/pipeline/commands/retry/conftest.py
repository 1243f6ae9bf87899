"""The output of a finished job, and the web server of its images."""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pipeline.run.steps import Steps
from tests.pipeline.commands.retry.jobs import make_stage, retry, run_job
from tests.pipeline.here import compute_here
from tests.pipeline.stages.download.server import TinyWeb


class Finished(NamedTuple):
    """A finished job."""

    folder: Path
    output: Path
    hits: Counter[str]


def without_models(patch: pytest.MonkeyPatch) -> None:
    """Run jobs and retries in this process."""
    patch.setattr(Steps, "make_stage", make_stage)
    patch.setattr("pipeline.run.loop.compute_local", compute_here)


@pytest.fixture(scope="session")
def server() -> Iterator[TinyWeb]:
    web = TinyWeb()
    yield web
    web.close()


@pytest.fixture(scope="session")
def finished_job(server: TinyWeb, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("job")
    with pytest.MonkeyPatch.context() as patch:
        without_models(patch)
        assert run_job(server, folder, folder / "out") == 0
    return Finished(folder, folder / "out", Counter(server.hits))


@pytest.fixture(scope="session")
def retried_job(server: TinyWeb, finished_job: Finished) -> Finished:
    """The job after two retries."""
    server.hits = Counter(finished_job.hits)
    output = Path(shutil.copytree(finished_job.output, finished_job.folder / "retried"))
    with pytest.MonkeyPatch.context() as patch:
        without_models(patch)
        assert retry(output) == retry(output) == 0
    return Finished(finished_job.folder, output, Counter(server.hits))


@pytest.fixture
def web(server: TinyWeb, finished_job: Finished, monkeypatch: pytest.MonkeyPatch) -> TinyWeb:
    """The server as the job has left it; jobs and retries run in this process, without models."""
    server.hits = Counter(finished_job.hits)
    without_models(monkeypatch)
    return server


@pytest.fixture
def output(finished_job: Finished, web: TinyWeb, tmp_path: Path) -> Path:
    """A copy of the output of the job."""
    return Path(shutil.copytree(finished_job.output, tmp_path / "out"))


@pytest.fixture
def retried(retried_job: Finished, web: TinyWeb, tmp_path: Path) -> Path:
    """A copy of the output after two retries."""
    web.hits = Counter(retried_job.hits)
    return Path(shutil.copytree(retried_job.output, tmp_path / "retried"))
