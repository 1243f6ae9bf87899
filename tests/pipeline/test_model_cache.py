"""Models at a URL: one download per machine, verified, offline; and the same files on all machines."""

import hashlib
import http.server
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import fsspec
import pytest

from hypergrit_common.errors import UserError
from pipeline.commands import models
from pipeline.config import load_config
from pipeline.models import local_model
from pipeline.run.provenance import make_provenance
from pipeline.run.steps import Steps
from pipeline.stages.ground.glip.load import find_vocabulary
from pipeline.stages.ground.load import MINIATURE
from tests.pipeline.hub import served

WEIGHTS = b"weights" * 1000


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of this machine."""
    monkeypatch.setenv("HYPERGRIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return tmp_path / "cache" / "models"


class Handler(http.server.SimpleHTTPRequestHandler):
    requests: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.requests.append(self.path)
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The URL of a server of the folder tmp_path/web, which has a weight file."""
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "glip.pth").write_bytes(WEIGHTS)
    Handler.requests.clear()
    with served(partial(Handler, directory=str(tmp_path / "web"))) as url:
        yield url


@pytest.fixture
def bucket() -> Iterator[str]:
    """The URL of a folder of an object store with the miniature grounder."""
    fs = fsspec.filesystem("memory")
    fs.put(f"{MINIATURE}/", "/models/glip/", recursive=True)
    yield "memory://models/glip"
    fs.rm("/models", recursive=True)


def pinned(url: str, content: bytes = WEIGHTS) -> str:
    return f"{url}#sha256={hashlib.sha256(content).hexdigest()}"


def test_processes_of_a_machine_download_a_file_once(server: str, cache: Path) -> None:
    name = pinned(f"{server}/glip.pth")
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(local_model, [name] * 8))
    (path,) = paths
    assert (Path(path).read_bytes(), Path(path).name) == (WEIGHTS, "glip.pth")
    assert Handler.requests == ["/glip.pth"]
    assert [child.name for child in Path(path).parent.iterdir() if child.name != ".lock"] == ["glip.pth"]
    assert Path(path).parent.parent == cache


def test_file_with_another_hash_is_refused_and_not_kept(server: str, cache: Path) -> None:
    with pytest.raises(UserError, match=r"has the SHA-256 [0-9a-f]{64} instead of [0-9a-f]{64}"):
        local_model(pinned(f"{server}/glip.pth", b"other"))
    assert [path for path in cache.rglob("*") if path.is_file() and path.name != ".lock"] == []


def test_folder_of_a_store_is_a_grounder_with_the_hash_of_its_files(bucket: str) -> None:
    local, remote = (
        make_provenance(load_config(["input=in", "output=out", f"grounder={name}"]))["models"]["grounder"]
        for name in (str(MINIATURE), bucket)
    )
    assert remote == {"name": bucket, "sha256": local["sha256"]}
    assert find_vocabulary(bucket, Path("unused")).read_bytes() == (MINIATURE / "vocab.txt").read_bytes()


def test_offline_mode_uses_the_copy_and_asks_nobody(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=r"glip\.pth is not in .*hypergrit models fetch"):
        local_model(f"{server}/glip.pth")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    path = local_model(f"{server}/glip.pth")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert local_model(f"{server}/glip.pth") == path
    assert Handler.requests == ["/glip.pth"]


def test_download_of_a_killed_process_is_not_taken_for_the_model(server: str, cache: Path) -> None:
    path = Path(local_model(f"{server}/glip.pth"))
    path.unlink()
    (path.parent / "draft-of-the-dead").mkdir()
    (path.parent / "draft-of-the-dead" / "glip.pth").write_bytes(WEIGHTS[:100])
    assert Path(local_model(f"{server}/glip.pth")).read_bytes() == WEIGHTS
    assert not list(cache.rglob("draft-*"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("http://127.0.0.1:9/glip.pth", "cannot be fetched"),
        ("memory://nothing/here", "does not exist, or is an empty folder"),
        ("memory://models/glip#sha256=" + 64 * "0", "is a folder"),
        ("memory://models/glip#main", "a fragment is #sha256="),
        ("https://example.org/glip.pth?X-Amz-Signature=1f", "a user name or a query"),
        ("s3://KEY:SECRET@bucket/glip", "a user name or a query"),
        ("nonsense://bucket/glip", "nonsense"),
    ],
)
def test_bad_url_is_an_error_of_one_line_without_secrets(bucket: str, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        local_model(name)
    assert "\n" not in str(error.value)
    assert "SECRET" not in str(error.value)
    assert "1f" not in str(error.value)


@pytest.mark.parametrize("name", ["miniature", "/no/such/glip", "owner/name", "open_clip:ViT-B-32/a", "file:///a/b"])
def test_other_names_are_unchanged(name: str) -> None:
    assert local_model(name) == name


@pytest.mark.parametrize("role", ["grounder", "scorer"])
def test_machine_with_other_files_of_a_model_does_not_compute(role: str) -> None:
    config = load_config(["input=in", "output=out"])
    provenance = make_provenance(config)
    stage = {"grounder": "ground", "scorer": "score"}[role]
    Steps(config, provenance).stage(stage)
    provenance["models"][role]["sha256"] = 64 * "0"  # type: ignore[literal-required]
    with pytest.raises(UserError, match=f"{role}: .* has other files than where the job was started"):
        Steps(config, provenance).stage(stage)


def test_fetch_prints_the_hashes_of_the_job(bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert models.main(["fetch", f"grounder={bucket}"]) == 0
    grounder, scorer = capsys.readouterr().out.splitlines()
    assert grounder.split()[:2] == ["grounder", bucket]
    assert len(grounder.split()[2]) == len(scorer.split()[2]) == 64
