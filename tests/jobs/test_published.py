"""The jobs for published data sets, on rows with the columns, types and files of the publications."""

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import grit
from pipeline.config import load_config
from pipeline.output.write.tar import TarWriter
from pipeline.read.plan import plan_shards
from pipeline.read.source import read_shard
from tests.jobs.test_taxonomies import write_inaturalist, write_table
from tests.pipeline.commands.derive.outputs import read_rows

BY = "https://creativecommons.org/licenses/by/2.0/"
JOBS = Path(__file__).resolve().parents[2] / "jobs" / "pipeline"
BOXES = pa.list_(pa.list_(pa.float64()))
COYO = {
    "id": pa.int64(), "url": pa.string(), "text": pa.string(), "width": pa.int64(), "height": pa.int64(),
    "image_phash": pa.string(), "text_length": pa.int64(), "word_count": pa.int64(), "num_tokens_bert": pa.int64(),
    "num_tokens_gpt": pa.int64(), "num_faces": pa.int64(), "clip_similarity_vitb32": pa.float64(),
    "clip_similarity_vitl14": pa.float64(), "nsfw_score_opennsfw2": pa.float64(), "nsfw_score_gantman": pa.float64(),
    "watermark_score": pa.float64(), "aesthetic_score_laion_v2": pa.float64(),
}  # fmt: skip
GRIT = {
    "key": pa.string(), "clip_similarity_vitb32": pa.float64(), "clip_similarity_vitl14": pa.float64(), "id": pa.int64(),
    "url": pa.string(), "caption": pa.string(), "width": pa.int64(), "height": pa.int64(), "noun_chunks": BOXES,
    "ref_exps": BOXES,
}  # fmt: skip
LAION_2B = {
    "URL": pa.string(), "TEXT": pa.string(), "WIDTH": pa.int32(), "HEIGHT": pa.int32(), "similarity": pa.float64(),
    "hash": pa.int64(), "punsafe": pa.float32(), "pwatermark": pa.float32(), "AESTHETIC_SCORE": pa.float32(),
}  # fmt: skip
LAION_400M = {
    "SAMPLE_ID": pa.float64(), "URL": pa.string(), "TEXT": pa.string(), "HEIGHT": pa.int32(), "WIDTH": pa.int32(),
    "LICENSE": pa.string(), "NSFW": pa.string(), "similarity": pa.float64(),
}  # fmt: skip
DATACOMP = {
    "uid": pa.string(), "url": pa.string(), "text": pa.string(), "original_width": pa.int64(),
    "original_height": pa.int64(), "clip_b32_similarity_score": pa.float32(), "clip_l14_similarity_score": pa.float32(),
    "face_bboxes": BOXES, "sha256": pa.string(),
}  # fmt: skip

VALUES: dict[str, list[Any]] = {
    "url": ["https://example.org/1.jpg", "https://example.org/2.jpg"],
    "caption": ['a "red" cat on the', "a dog"],
    "noun_chunks": [[[0.0, 9.0, 0.1, 0.2, 0.3, 0.4, 0.9]], []],
    "ref_exps": [[[0.0, 16.0, 0.1, 0.2, 0.3, 0.4, 0.9]], []],
    "face_bboxes": [[[0.1, 0.2, 0.3, 0.4]], []],
    "similarity": [0.35, 0.2],
    "pwatermark": [0.1, None],
    "punsafe": [0.01, 0.01],
    "NSFW": ["UNLIKELY", "NSFW"],
    "uid": ["0a1b", "2c3d"],
    "sha256": ["ab" * 32, "cd" * 32],
}


def parquet(columns: dict[str, pa.DataType]) -> Callable[[Path], Path]:
    """A function that writes two rows with these columns."""

    def write(folder: Path) -> Path:
        arrays = {}
        for name, kind in columns.items():
            known = VALUES.get({"URL": "url", "TEXT": "caption", "text": "caption"}.get(name, name))
            arrays[name] = pa.array(known or ["7", "8"] if pa.types.is_string(kind) else known or [7, 8], kind)
        pq.write_table(pa.table(arrays), folder / "part-00000.parquet", compression="snappy")
        (folder / "part-00000.npz").write_bytes(b"embeddings")
        (folder / "dataset_infos.json").write_text("{}")
        return folder

    return write


def redcaps(folder: Path) -> Path:
    """One file of annotations for each subreddit and year."""
    info = {"url": "https://redcaps.xyz/", "version": "1.0", "start_date": "2020-01-01"}
    for i, name in enumerate(["cats_2019", "dogs_2020"]):
        row = {
            "image_id": f"b3mj{i}", "author": "someone", "url": VALUES["url"][i], "raw_caption": VALUES["caption"][i],
            "caption": "cleaned", "subreddit": name[:-5], "score": 31, "created_utc": 1_500_000_000,
            "permalink": f"/r/{name[:-5]}/comments/1/", "crosspost_parents": None if i else ["abc"],
        }  # fmt: skip
        (folder / f"{name}.json").write_text(json.dumps({"info": info, "annotations": [row]}))
    return folder


def sbu(folder: Path) -> Path:
    """One object with a list per column."""
    lists = {"image_urls": VALUES["url"], "user_ids": ["47889917@N08", "1@N00"], "captions": VALUES["caption"]}
    (folder / "sbu-captions-all.json").write_text(json.dumps(lists))
    return folder / "sbu-captions-all.json"


def tsv(*names: str) -> Callable[[Path], Path]:
    """A function that writes a TSV without header and quotes."""

    def write(folder: Path) -> Path:
        rows = zip(*(VALUES[name] for name in names), strict=True)
        (folder / "rows.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
        return folder / "rows.tsv"

    return write


def yfcc(folder: Path) -> Path:
    """Lines of JSON with title and description."""
    rows = [
        {"photoid": i, "title": "IMG_1", "description": VALUES["caption"][i], "downloadurl": url, "usertags": "a,b"}
        for i, url in enumerate(VALUES["url"])
    ]
    (folder / "yfcc15m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "yfcc15m.jsonl"


def open_images(folder: Path) -> Path:
    """The table that the statement in open_images.yaml makes of the list of images and the captions."""
    write_open_images(folder, VALUES["url"], VALUES["caption"])
    return folder / "pairs.parquet"


def write_open_images(folder: Path, urls: list[str], captions: list[str], licenses: tuple[str, ...] = (BY,)) -> None:
    """Write the list of images and their captions in the layout of Open Images, and join them as its job tells."""
    names = "ImageID,Subset,OriginalURL,OriginalLandingURL,License,AuthorProfileURL,Author,Title,OriginalSize,"
    lines = [f"{names}OriginalMD5,Thumbnail300KURL,Rotation"]
    texts = []
    for i, (url, caption, license) in enumerate(zip(urls, captions, [*licenses, *licenses[:1] * 9], strict=False)):
        page = f"https://flickr.example/{i}"
        lines.append(f"00000000000000{i:02d},train,{url},{page},{license},{page}/me,Jane {i},IMG_{i},9,md5,,0.0")
        texts += [{"dataset_id": "open_images", "image_id": f"00000000000000{i:02d}", "annotator_id": 1, "caption": text}
                  for text in (caption, caption[:2])]  # fmt: skip
    (folder / "train-images-boxable-with-rotation.csv").write_text("\n".join(lines))
    (folder / "open_images_train_v6_captions.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    job = (JOBS / "open_images.yaml").read_text()
    statement = re.sub("^#", "", job[job.index("#   copy") : job.index(";\n")], flags=re.MULTILINE)
    with contextlib.chdir(folder):
        duckdb.execute(statement)


PD12M = {
    "id": pa.string(), "url": pa.string(), "caption": pa.string(), "width": pa.int64(), "height": pa.int64(),
    "mime_type": pa.string(), "hash": pa.string(), "license": pa.string(), "source": pa.string(),
}  # fmt: skip
PUBLISHED: dict[str, tuple[str, Callable[[Path], Path], tuple[str, ...], set[str]]] = {
    "coyo": ("coyo", parquet(COYO), (), {*COYO} - {"id", "url", "text"}),
    "grit": ("grit", parquet(GRIT), (), {*GRIT} - {"id", "url", "caption", "noun_chunks", "ref_exps"}),
    "laion 2b": ("laion", parquet(LAION_2B), (), {*LAION_2B} - {"URL", "TEXT"}),
    "laion 400m": (
        "laion",
        parquet(LAION_400M),
        ("read.where=\"similarity > 0.3 and NSFW == 'UNLIKELY'\"",),
        {*LAION_400M} - {"URL", "TEXT", "SAMPLE_ID"},
    ),
    "datacomp": ("datacomp", parquet(DATACOMP), (), {*DATACOMP} - {"uid", "url", "text"}),
    "cc3m": ("cc3m", tsv("caption", "url"), (), set()),
    "cc12m": ("cc12m", tsv("url", "caption"), (), set()),
    "redcaps": (
        "redcaps",
        redcaps,
        (),
        {"author", "caption", "subreddit", "score", "created_utc", "permalink", "crosspost_parents"},
    ),
    "sbu": ("sbu", sbu, (), {"user_ids"}),
    "yfcc": ("yfcc", yfcc, (), {"photoid", "usertags"}),
    "pd12m": ("pd12m", parquet(PD12M), (), {*PD12M} - {"id", "url", "caption"}),
    "open images": (
        "open_images",
        open_images,
        (),
        {"ImageID", "Subset", "OriginalLandingURL", "License", "AuthorProfileURL", "Author", "Title", "OriginalSize",
         "OriginalMD5", "Thumbnail300KURL", "Rotation"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_job_reads_its_data_set_as_published(name: str, tmp_path: Path) -> None:
    job, write, arguments, extra = PUBLISHED[name]
    config = load_config([str(JOBS / f"{job}.yaml"), f"input={write(tmp_path)}", *arguments])
    plans = plan_shards(config.input, 1, None, config.read)
    rows = [row for plan in plans for row in read_shard(plan, config.read).to_pylist()]
    assert [row["url"] for row in rows] == VALUES["url"]
    assert [row["caption_original"] for row in rows] == VALUES["caption"]
    assert [row["reason"] for row in rows] == ([None, "not_selected"] if job == "laion" else [None, None])
    assert set(json.loads(rows[0]["extra"] or "{}")) == extra
    assert (rows[0]["id"] is None) == (name in ("laion 2b", "cc3m", "cc12m", "sbu", "yfcc", "open images"))
    if name == "grit":
        box = rows[0]["given_noun_chunks"][0]
        assert (box["start"], box["end"], round(box["x_max"], 4), round(box["score"], 4)) == (0, 9, 0.3, 0.9)
        assert rows[1]["given_ref_exps"] == []


def test_every_job_for_a_data_set_is_tried() -> None:
    assert {job for job, *_ in PUBLISHED.values()} == {path.stem for path in JOBS.glob("*.yaml")} - {
        *(
            "pairs",
            "treeoflife",
            "inaturalist",
            "finehard",
            "gligen",
            "blip3",
        )  # an overlay; test_taxonomies.py, test_given_boxes.py
    }


def laion_tars(folder: Path) -> Path:
    """Tars of img2dataset, whose JSON has no columns of LAION."""
    _, jpeg = cv2.imencode(".jpg", np.full((80, 80, 3), 200, np.uint8))
    with (folder / "00000.tar").open("wb") as file, TarWriter(file) as tar:
        for i, caption in enumerate(VALUES["caption"]):
            facts = json.dumps({"url": VALUES["url"][i], "caption": caption, "status": "success"}).encode()
            tar.add_sample(f"{i:09d}", [("jpg", jpeg.tobytes()), ("txt", caption.encode()), ("json", facts)])
    return folder / "*.tar"


def taxonomy(write: Callable[[Path], Path]) -> Callable[[Path], tuple[str, ...]]:
    """A function that writes a table with files of images; returns the settings that name both."""
    return lambda folder: (f"input={write(folder)}", f"read.image_roots=[{folder}]")


INPUTS: dict[str, tuple[str, Callable[[Path], tuple[str, ...]]]] = {
    **{
        name: (job, lambda folder, write=write, arguments=arguments: (f"input={write(folder)}", *arguments))
        for name, (job, write, arguments, _) in PUBLISHED.items()
    },
    "laion tars": ("laion", lambda folder: (f"input={laion_tars(folder)}", "read.where=null")),
    "treeoflife": ("treeoflife", taxonomy(write_table)),
    "inaturalist": ("inaturalist", taxonomy(write_inaturalist)),
}
"""Name -> job, and a function that writes its input to a folder and returns the settings."""
PAIRS = str(JOBS / "pairs.yaml")
MINIATURE = ("grounder=miniature", "scorer=miniature")
QUICK = {("yfcc", PAIRS), ("laion tars", PAIRS), ("laion tars", MINIATURE)}
CASES = [
    pytest.param(name, kind, id=f"{name}-{'pairs' if kind == PAIRS else 'boxes'}",
                 marks=() if (name, kind) in QUICK else pytest.mark.rest)
    for name in INPUTS for kind in (PAIRS, MINIATURE)
]  # fmt: skip


@pytest.mark.usefixtures("computed_here")
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_dry_run_predicts_each_job(
    name: str, kind: str | tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    job, write = INPUTS[name]
    has_boxes = kind == MINIATURE and job not in ("treeoflife", "inaturalist")
    settings = [str(JOBS / f"{job}.yaml"), *([PAIRS] if kind == PAIRS else MINIATURE if has_boxes else ())]
    values = [*write(tmp_path / "in"), f"output={tmp_path / 'out'}", "ray.runner=local"]
    offline = ["download.proxy=http://127.0.0.1:9", "download.retries=0"]  # example.org is not asked
    assert grit.main([*settings, *values, *offline, "dry_run=true"]) == 0
    said = capsys.readouterr().out
    n = 3 if job == "treeoflife" else 1 if job == "inaturalist" else 2
    assert f"sample: {n} of {n} row" in said
    formats = load_config([*settings, *values]).write.formats
    assert all(f"bytes of {folder}/" in said for folder in formats)
    assert ("train" in formats) == (kind != PAIRS)
    assert not (tmp_path / "out").exists()
    if name == "laion tars" and kind == PAIRS:
        assert "100.0%" in said  # all rows are kept


@pytest.mark.usefixtures("computed_here")
def test_tars_of_laion_become_pairs(tmp_path: Path) -> None:
    job, write = INPUTS["laion tars"]
    (tmp_path / "in").mkdir()
    values = [*write(tmp_path / "in"), f"output={tmp_path / 'out'}", "ray.runner=local"]
    assert grit.main([str(JOBS / f"{job}.yaml"), PAIRS, *values]) == 0
    assert [row["caption"] for row in read_rows(tmp_path / "out").values()] == VALUES["caption"]
    assert json.loads((tmp_path / "out" / "stats.json").read_text())["pairs"] == 2
