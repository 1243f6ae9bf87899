"""Decontaminate: rows whose images are in an evaluation set are dropped, by URL, hash and perceptual hash."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from hypergrit_common.images import decode
from hypergrit_common.near_duplicates import perceptual_hash
from pipeline.commands import rewrite
from pipeline.commands.evaluation_set import EvaluationSet, read_evaluation_set
from pipeline.output.source import Source, read_table
from pipeline.read.takedown import TakedownList
from tests.pipeline.commands.derive.rows import manifests_of, rows_of, stats_of
from tests.pipeline.commands.derive.scenes import write_output
from tests.pipeline.jobs import hash_output


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished output in all formats."""
    output = tmp_path_factory.mktemp("decontaminate") / "out"
    write_output(output)
    return output


@pytest.fixture(scope="module")
def kept(source: Path) -> list[dict[str, Any]]:
    """The kept rows with their images."""
    found = Source(str(source))
    rows = [row for i in found.manifests for row in read_table(str(source), found.shard(i)).to_pylist()]
    return [row for row in rows if row["status"] == "kept"]


def run(source: Path, output: Path, *arguments: str) -> int:
    """Run the command on this machine; return its exit code."""
    arguments = (f"source={source}", f"output={output}", "ray.runner=local", "ray.cpu_workers=1", *arguments)
    return rewrite.main(arguments)


def found_in(output: Path) -> dict[str, str]:
    """Detail by key of the rows that were dropped."""
    return {row["key"]: row["detail"] for row in rows_of(output) if row["reason"] == "in_evaluation_set"}


def test_rows_are_found_by_url_hash_and_a_copy_of_the_image(
    source: Path, kept: list[dict[str, Any]], tmp_path: Path
) -> None:
    image = decode(kept[3]["image"])
    small = cv2.resize(image, None, fx=0.6, fy=0.6, interpolation=cv2.INTER_AREA)
    (tmp_path / "set" / "deep").mkdir(parents=True)
    cv2.imwrite(str(tmp_path / "set" / "deep" / "copy.jpg"), small[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, 70])
    picture = perceptual_hash(decode(kept[2]["image"])) ^ 0b101
    lines = [kept[0]["url"].replace("http:", "HTTPS:"), kept[1]["sha256"].upper(), f"{picture:016x}", "# a comment"]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    before = hash_output(source)
    arguments = [f"against={tmp_path / 'set'}", f"against={tmp_path / 'list.txt'}"]
    assert run(source, tmp_path / "new", *arguments) == 0
    assert hash_output(source) == before
    found = found_in(tmp_path / "new")
    assert list(found) == [row["key"] for row in kept[:4]]
    assert list(found.values())[:3] == ["url", "sha256", "perceptual hash, 2 bits"]
    assert stats_of(tmp_path / "new")["rows"]["kept"] == len(kept) - 4
    for row in rows_of(tmp_path / "new"):
        if row["key"] in found:
            assert (row["stage"], row["boxes"], row["caption"], row["image"]) == ("download", None, None, None)
            assert row["url"]
        else:
            assert row in rows_of(source)
    for manifest in manifests_of(tmp_path / "new"):
        assert manifest["origin"]["command"] == "rewrite"
        assert manifest["origin"]["settings"]["against_radius"] == 6
    hashes = hash_output(tmp_path / "new")
    (tmp_path / "new" / "_manifests" / "00001.json").unlink()
    assert run(source, tmp_path / "new", *arguments) == 0
    assert hash_output(tmp_path / "new") == hashes
    assert run(source, tmp_path / "new", *arguments, "against_radius=1") == 2  # another set: nothing is discarded
    assert run(source, tmp_path / "new", *arguments, "against_radius=1", "overwrite=true") == 0
    assert kept[2]["key"] not in found_in(tmp_path / "new")


def test_the_radius_is_the_largest_distance_that_counts(kept: list[dict[str, Any]]) -> None:
    picture = perceptual_hash(decode(kept[0]["image"]))
    for bits, radius, is_found in ((3, 3, True), (4, 3, False), (0, 0, True), (1, 0, False)):
        near = EvaluationSet(TakedownList(), (picture ^ (2**bits - 1),), radius)
        assert (near.match(None, None, kept[0]["image"]) is not None) == is_found


def test_different_pictures_of_the_test_output_are_not_confused(kept: list[dict[str, Any]]) -> None:
    pictures = [perceptual_hash(decode(row["image"])) for row in kept]
    for i, row in enumerate(kept):
        others = EvaluationSet(TakedownList(), tuple(pictures[:i] + pictures[i + 1 :]), 6)
        assert others.match(None, None, row["image"]) is None


def test_an_image_that_cannot_be_decoded_counts_with_its_hash(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "broken.png").write_bytes(b"\x89PNG broken")
    found = read_evaluation_set([str(tmp_path)], 6)
    assert (len(found.entries.hashes), found.pictures) == (1, ())
    assert "cannot be decoded" in caplog.text
    cv2.imwrite(str(tmp_path / "good.png"), np.zeros((40, 40, 3), np.uint8))
    assert read_evaluation_set([str(tmp_path)], 6).digest != found.digest


def test_the_source_cannot_be_the_output(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "urls.txt").write_text("http://example.org/1.jpg\n")
    assert run(source, source, f"against={tmp_path / 'urls.txt'}") == 2
    assert "is the source" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["against_radius=3"], "against_radius has no effect without against="),
        (["against="], "against is not set"),
        (["against=SOURCE/arrow"], "no images"),
        (["against=SOURCE/none"], "cannot be read"),
        (["against=SOURCE/arrow/00000.arrow"], "neither a folder nor UTF-8 text"),
        (["against=HOSTS"], "example.org is a host"),
        (["against=EMPTY"], "has no entries"),
        (["against=URLS", "against_radius=-1"], "give 0 to 16"),
        (["against=URLS", "against_radius=17"], "give 0 to 16"),
        (["against=URLS", "against_radius=2.5"], "against_radius=2.5: "),
        (["against=URLS", "ground.floor=0.9"], "rewrite cannot change ground.floor"),
        (["against=URLS", "output=SOURCE"], "output is given 2 times; give one"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    texts = {"HOSTS": "example.org\n", "EMPTY": "# nothing\n", "URLS": "http://example.org/1.jpg\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        arguments = [item.replace(name, str(tmp_path / name)) for item in arguments]
    arguments = [item.replace("SOURCE", str(source)) for item in arguments]
    assert run(source, tmp_path / "new", *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "new").exists()
