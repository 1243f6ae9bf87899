"""jobs/pipeline/coco.sh, with a program that stands for hypergrit: it joins the two lists of COCO's captions."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE_S
from tests.pipeline.read.test_stage import read_all

JOB = Path(__file__).resolve().parents[2] / "jobs/pipeline/coco.sh"


def run(folder: Path, lists: dict[str, object]) -> subprocess.CompletedProcess[str]:
    (folder / "captions.json").write_text(json.dumps(lists))
    (folder / "hypergrit").write_text('#!/bin/bash\necho "$@"\n')
    (folder / "hypergrit").chmod(0o755)
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["bash", JOB, "captions.json", "out", "limit=9"]
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
    again = run(tmp_path, {})  # the input is there
    assert again.stdout == done.stdout


def test_captions_of_images_that_the_file_lacks_are_an_error(tmp_path: Path) -> None:
    done = run(tmp_path, {"images": [], "annotations": [{"image_id": 7, "caption": "a dog"}]})
    assert (done.returncode, done.stdout) == (1, "")
    assert "1 images of the captions are not in the list of the images, such as 7" in done.stderr
