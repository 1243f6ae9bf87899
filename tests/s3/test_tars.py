"""Planning of tars in an object store: how much of them is read."""

import io
import tarfile
from collections.abc import Iterator

import fsspec
import pytest
from s3fs.core import S3File

from pipeline.read.config import ReadConfig
from pipeline.read.samples import scan_tar


def make_tar(sizes: list[int]) -> tuple[bytes, list[int]]:
    """Return a tar with an image of each size and its caption, and the first bytes of the samples."""
    buffer, starts = io.BytesIO(), []
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for i, size in enumerate(sizes):
            starts.append(tar.offset)
            for name, data in ((f"{i:06d}.jpg", bytes([i % 251 + 1]) * size), (f"{i:06d}.txt", b"a dog")):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue(), starts


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The bytes of each request for content."""
    found: list[int] = []
    fetch = S3File._fetch_range

    def count(self: S3File, start: int, end: int) -> bytes:
        found.append(end - start)
        return fetch(self, start, end)

    monkeypatch.setattr(S3File, "_fetch_range", count)
    return found


@pytest.mark.parametrize(
    ("sizes", "most_share", "most_requests"),
    [
        ([3_000_000] * 8, 0.05, 9),  # one request for each, and one for the end
        ([2_000_000, 500] * 6, 0.1, 9),
        ([30_000] * 400, 1.05, 12),  # small members are not skipped, but read in few requests
        ([100] * 3, 1.0, 1),
    ],
)
def test_planning_skips_large_members_and_reads_small_ones_in_few_requests(
    server: str, requests: list[int], sizes: list[int], most_share: float, most_requests: int
) -> None:
    data, starts = make_tar(sizes)
    fs = fsspec.filesystem("s3")
    fs.makedirs("tars", exist_ok=True)
    fs.pipe_file("tars/a.tar", data)
    fs.invalidate_cache()
    scan = scan_tar("s3://tars/a.tar", len(data), "", ReadConfig(), None)
    assert (scan.starts.tolist(), scan.damage) == (starts, "")
    assert sum(requests) <= most_share * len(data)
    assert len(requests) <= most_requests


def test_a_tar_that_ends_in_a_large_member_is_damaged_there(server: str, requests: list[int]) -> None:
    data, starts = make_tar([2_000_000] * 4)
    cut = data[: starts[3] + 1_000_000]
    fs = fsspec.filesystem("s3")
    fs.makedirs("tars", exist_ok=True)
    fs.pipe_file("tars/cut.tar", cut)
    scan = scan_tar("s3://tars/cut.tar", len(cut), "", ReadConfig(), None)
    assert scan.starts.tolist() == starts[:3]
    assert "truncated inside 000003.jpg" in scan.damage
    assert sum(requests) < 0.1 * len(cut)
