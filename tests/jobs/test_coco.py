"""jobs/pipeline/coco.sh, with a program that stands for hypergrit: it joins the two lists of COCO's captions."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.pipeline.read.test_stage import read_all

JOB = Path(__file__).resolve().parents[2] / "jobs/pipeline/coco.sh"


def run(folder: Path, lists: object, name: str = "captions.json") -> subprocess.CompletedProcess[str]:
    (folder / name).write_text(json.dumps(lists))
    (folder / "hypergrit").write_text('#!/bin/bash\necho "$@"\n')
    (folder / "hypergrit").chmod(0o755)
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["bash", JOB, name, "out", "limit=9"]
    env = {**os.environ, "PATH": path}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE_S)


def test_images_of_coco_get_their_captions_in_order(tmp_path: Path) -> None:
    images = [{"id": i, "file_name": f"{i}.jpg", "coco_url": f"http://c/{i}.jpg"} for i in range(3)]
    captions = [{"image_id": i % 2, "id": i, "caption": f"caption {i}"} for i in range(5)]
    done = run(tmp_path, {"info": {}, "licenses": [], "images": images, "annotations": captions})
    assert done.stdout.split()[2:] == [
        "input=out.input", "output=out", "read.url_column=coco_url", "read.captions=all", "limit=9",
    ]  # fmt: skip
    rows = read_all(tmp_path / "out.input", url_column="coco_url", captions="all")
    assert [(row["id"], row["url"], [item["text"] for item in row["captions"] or ()]) for row in rows] == [
        ("0", "http://c/0.jpg", ["caption 0", "caption 2", "caption 4"]),
        ("1", "http://c/1.jpg", ["caption 1", "caption 3"]),
        ("2", "http://c/2.jpg", []),
    ]
    again = run(tmp_path, {"info": {}, "licenses": [], "images": images, "annotations": captions})  # the input is there
    assert again.stdout == done.stdout
    for name, before in (("other.json", ""), ("captions.json", " as it was before")):
        other = run(tmp_path, {"images": images, "annotations": captions[:2]}, name)
        assert (other.returncode, other.stdout) == (1, "")
        assert other.stderr == (
            f"out.input was made of {tmp_path}/captions.json{before}, not of {tmp_path}/{name}; "
            "give another OUTPUT, or delete out.input\n"
        )


def test_columns_of_coco_are_those_of_all_images(tmp_path: Path) -> None:
    images = [{"id": 5}, {"id": 6, "coco_url": "http://c/6.jpg"}, {"coco_url": "http://c/7.jpg", "id": 7, "license": 3}]
    run(tmp_path, {"images": images, "annotations": [{"image_id": i, "caption": f"caption {i}"} for i in (7, 6, 5)]})
    rows = read_all(tmp_path / "out.input", url_column="coco_url", captions="all")
    assert [row["url"] for row in rows] == [None, "http://c/6.jpg", "http://c/7.jpg"]


@pytest.mark.parametrize(
    ("lists", "reason"),
    [
        ({"images": [{"id": 1}], "annotations": [{"image_id": 1, "bbox": [0, 0, 1, 1]}]}, "'caption' is missing"),
        ({"images": [{"id": 1}], "categories": []}, "'annotations' is missing"),
        ({"images": [{"url": "x"}], "annotations": []}, "'id' is missing"),
        ([1], "list indices must be integers or slices, not str"),
    ],
)
def test_other_files_of_coco_are_one_clear_line(tmp_path: Path, lists: object, reason: str) -> None:
    done = run(tmp_path, lists)
    text = f"{tmp_path}/captions.json is no file of captions, as captions_val2017.json is one: {reason}\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", text)


def test_images_of_coco_that_are_no_table_are_one_clear_line(tmp_path: Path) -> None:
    for images in ([], [{"id": 1, "license": 1}, {"id": 2, "license": "CC"}]):
        done = run(tmp_path, {"images": images, "annotations": []})
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert done.stderr.startswith(f"{tmp_path}/captions.json: ")


def test_captions_of_images_that_the_file_lacks_are_an_error(tmp_path: Path) -> None:
    done = run(tmp_path, {"images": [], "annotations": [{"image_id": 7, "caption": "a dog"}]})
    assert (done.returncode, done.stdout) == (1, "")
    assert "1 images of the captions are not in the list of the images, such as 7" in done.stderr
