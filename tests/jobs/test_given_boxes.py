"""The jobs for sets with given boxes, on rows in the layout of the published code."""

import base64
import hashlib
import json
import re
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.commands import export, rewrite, takedown, verify
from pipeline.config import load_config
from pipeline.images import encode_jpeg
from pipeline.output.write.train import read_hard_negatives
from pipeline.read.blip3 import take_boxes
from pipeline.read.plan import plan_shards
from pipeline.read.rows import finehard_boxes
from pipeline.read.source import read_shard
from pipeline.read.types import BadRowError
from pipeline.stages.captions import clean_captions
from pipeline.stages.download.stage import Download
from pipeline.stages.ground.stage import keep_given
from pipeline.stages.parse.stage import Parse
from tests.pipeline.commands.derive.outputs import read_rows
from tests.pipeline.here import running_here
from tests.pipeline.jobs import run_job

JOBS = Path(__file__).resolve().parents[2] / "jobs" / "pipeline"
CAPTION = "A man in a red hat walks. The Red Hat is old."
IMAGE = encode_jpeg(np.full((120, 200, 3), 90, np.uint8))


def read(job: str, *arguments: str) -> list[dict[str, Any]]:
    """The rows that the job reads, two a shard."""
    config = load_config([str(JOBS / job), *arguments])
    plans = plan_shards(config.input, 2, None, config.read)
    return [row for plan in plans for row in read_shard(plan, config.read).to_pylist()]


def corners(boxes: Sequence[dict[str, Any]]) -> list[list[float]]:
    return [[round(box[name], 4) for name in ("x_min", "y_min", "x_max", "y_max", "score")] for box in boxes]


def region(text: str, *box: float) -> dict[str, Any]:
    negatives = {"0": "a blue hat", "1": "a green hat"}
    return {
        "bbox": [*box], "short_expr": text, "long_expr": f"{text} of wool", "flag_short_neg": 1, "flag_long_neg": 0,
        "short_expr_negs": negatives,
    }  # fmt: skip


def finehard(folder: Path, *rows: list[Any]) -> list[str]:
    """A JSON file of FineHARD with a row for each list of regions; returns the arguments of the job."""
    image = folder / "images" / "grit-20m" / "data-12m" / "coyo_image_0" / "00000" / "1.jpg"
    image.parent.mkdir(parents=True)
    image.write_bytes(IMAGE)
    (folder / "jsonfiles").mkdir()
    path = str(image.relative_to(folder / "images"))
    items = [{"f_path": path, "caption": CAPTION, "short_caption": "a man", "bbox_info": regions} for regions in rows]
    (folder / "jsonfiles" / "2024-12-06_results.json").write_text(json.dumps(items))
    return [f"input={folder / 'jsonfiles'}", "output=out", f"read.image_roots=[{folder / 'images'}]"]


def test_finehard_keeps_its_boxes_at_the_places_of_their_expressions(tmp_path: Path) -> None:
    hat, other = region("a Red hat", 0.1, 0.2, 0.5, 0.6, 0.8), region("a dog", 0.0, 0.0, 0.1, 0.1, 0.9)
    rows = read("finehard.yaml", *finehard(tmp_path, [hat, other], [other]))
    assert [row["status"] for row in rows] == ["kept", "kept"]
    assert rows[0]["image"] == IMAGE
    box, lost = rows[0]["given_noun_chunks"]
    assert CAPTION[box["start"] : box["end"]] == "a red hat"
    assert corners([box]) == [[0.1, 0.2, 0.5, 0.6, 0.8]]
    assert rows[1]["given_noun_chunks"] == [lost]
    assert (lost["start"], lost["end"]) == (-1, -1)
    assert json.loads(rows[0]["extra"])["bbox_info"] == [hat, other]
    assert read_hard_negatives(rows[0]["extra"], ["a man", "A RED hat"]) == [
        {"parent": 1, "texts": ["a blue hat", "a green hat"]}
    ]


@pytest.mark.parametrize(
    "change",
    [{"flag_short_neg": 0}, {"short_expr_negs": None}, {"short_expr_negs": {"0": 5, "1": " ", "2": "a RED hat"}}, None],
)
def test_regions_without_hard_negatives_add_nothing(change: dict[str, Any] | None) -> None:
    regions = 5 if change is None else ["a hat", {**region("a red hat", 0, 0, 1, 1), **change}]
    extra = json.dumps({"bbox_info": regions, "short_expr_negs": 1})
    assert read_hard_negatives(extra, ["a red hat"]) == []
    assert read_hard_negatives(None, ["a red hat"]) == []


@pytest.mark.parametrize(
    ("caption", "expression", "phrases"),
    [
        ("That man wears a hat", "hat", ["hat"]),
        ("A cart behind the car", "car", ["car"]),
        ("A cart", "car", []),
        ("the dog's bowl (red)", "(red)", ["(red)"]),
    ],
)
def test_expressions_of_finehard_are_found_as_whole_words(caption: str, expression: str, phrases: list[str]) -> None:
    found = finehard_boxes([region(expression, 0.1, 0.2, 0.5, 0.6, 0.8)], caption, 10)
    found = [box for box in found if box[0] >= 0]
    assert [caption[start:end] for start, end, *_ in found] == phrases
    assert [caption[start - 1 : start].strip() for start, *_ in found] == [""] * len(phrases)


def test_a_box_of_finehard_with_too_few_numbers_names_itself() -> None:
    with pytest.raises(BadRowError, match=r"the bbox of region 1 \(from 0\) is a list of 3 numbers, not 4 or 5"):
        finehard_boxes([region("hat", 0, 0, 1, 1, 1), region("hat", 0, 0, 1)], "a hat", 10)


@pytest.mark.parametrize("regions", [5, ["a hat"], [{"bbox": [0.1, 0.2], "short_expr": "a"}], [{"bbox": [0, 0, 1, 1]}]])
def test_other_regions_cost_their_row(regions: Any, tmp_path: Path) -> None:
    rows = read("finehard.yaml", *finehard(tmp_path, regions, []))
    assert [row["reason"] for row in rows] == ["bad_row", None]
    assert "does not hold FineHARD's regions" in rows[0]["detail"]


def gligen(folder: Path, **changes: Any) -> list[str]:
    """A TSV file of GLIGEN with two rows, of which the second has `changes`; returns the arguments of the job."""
    embedding = base64.b64encode(np.zeros(768, np.float32).tobytes()).decode()
    embeddings = {f"{kind}_embedding_{place}": embedding for kind in ("text", "image") for place in ("before", "after")}
    annos = [
        {"id": 1, "data_id": 7, "category_id": 1, "bbox": [20, 24, 80, 48], "tokens_positive": [[9, 18]], **embeddings},
        {"id": 2, "data_id": 7, "category_id": 1, "bbox": [0, 0, 100, 120], "tokens_positive": [[2, 5], [0, 1]]},
    ]
    image = base64.b64encode(IMAGE).decode()
    item = {"data_id": 7, "image": image, "file_name": "000/1.jpg", "caption": CAPTION, "annos": annos}
    lines = [f"{i}\t{json.dumps(one)}\n" for i, one in enumerate([item, {**item, **changes}])]
    (folder / "train-00.tsv").write_text("".join(lines))
    return [f"input={folder}", "output=out"]


def test_gligen_keeps_its_boxes_as_fractions_and_its_images(tmp_path: Path) -> None:
    rows = read("gligen.yaml", *gligen(tmp_path))
    assert [(row["id"], row["status"], row["url"]) for row in rows] == [("0", "kept", None), ("1", "kept", None)]
    assert rows[0]["image"] == IMAGE
    hat, man = [0.1, 0.2, 0.5, 0.6, 1.0], [0.0, 0.0, 0.5, 1.0, 1.0]
    assert corners(rows[0]["given_noun_chunks"]) == [hat, man]
    spans = [CAPTION[box["start"] : box["end"]] for box in rows[0]["given_noun_chunks"]]
    assert spans == ["a red hat", "A man"]
    assert json.loads(rows[0]["extra"]) == {"file_name": "000/1.jpg"}


def test_gligen_gives_its_box_to_each_phrase_if_words_lie_between_them(tmp_path: Path) -> None:
    anno = {"bbox": [0, 0, 100, 120], "tokens_positive": [[11, 14], [2, 5], [9, 10], [15, 18]]}
    boxes = read("gligen.yaml", *gligen(tmp_path, annos=[anno]))[1]["given_noun_chunks"]
    assert [CAPTION[box["start"] : box["end"]] for box in boxes] == ["man", "a red hat"]
    assert corners(boxes) == [[0.0, 0.0, 0.5, 1.0, 1.0]] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": base64.b64encode(b"no picture").decode()}, "no JPEG"),
        ({"image": "?"}, "not a row of GLIGEN"),
        ({"annos": [{"bbox": [1, 2, 3], "tokens_positive": [[0, 2]]}]}, "not a row of GLIGEN"),
        ({"annos": [{"bbox": [0, 0, 900, 900], "tokens_positive": [[0, 2]]}]}, "fractions of the image"),
    ],
)
def test_a_damaged_row_of_gligen_is_dropped_alone(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    rows = read("gligen.yaml", *gligen(tmp_path, **change))
    assert [row["reason"] for row in rows] == [None, "bad_row"]
    assert message in rows[1]["detail"]


def test_a_line_with_an_image_of_megabytes_is_read(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1200, 1200, 3)).astype(np.uint8)
    image = cv2.imencode(".jpg", noise)[1].tobytes()
    assert len(image) > 1_048_576
    rows = read("gligen.yaml", *gligen(tmp_path, image=base64.b64encode(image).decode()))
    assert rows[1]["image"] == image


def test_given_boxes_pass_the_stages_without_a_grounder(tmp_path: Path) -> None:
    config = load_config([str(JOBS / "gligen.yaml"), *gligen(tmp_path)])
    (plan,) = plan_shards(config.input, 2, None, config.read)
    table = Download(config.download)(read_shard(plan, config.read))
    table = keep_given(Parse(config.parse, keeps_pairs=True)(clean_captions(table, config.captions)))
    row = table.to_pylist()[0]
    chunks = [row["noun_chunks"][box["phrase"]] for box in row["boxes"]]
    assert [row["caption"][chunk["start"] : chunk["end"]] for chunk in chunks] == ["a red hat", "A man"]
    assert len(row["tokens"]) > 10


RED_HAT = "A man in a red hat (starts at [0.1, 0.2] and extends upto [0.5, 0.6]) walks."
COGVLM = "A man walks."


def blip3(folder: Path, *captions: Any) -> list[str]:
    """A parquet of BLIP3-GROUNDING with a row for each list of captions, or its text; returns the arguments of the job."""
    texts = [entries if isinstance(entries, str) else repr(entries) for entries in captions]
    urls = [f"http://x/{i}.jpg" for i in range(len(texts))]
    table = pa.table({"url": urls, "cogvlm_caption": [COGVLM] * len(texts), "captions": texts})
    pq.write_table(table, folder / "combined_part_01.parquet")
    return [f"input={folder}", "output=out"]


def test_blip3_takes_the_first_caption_with_boxes_and_without_the_alt_text(tmp_path: Path) -> None:
    words = ["A man in a red hat (top left of the image) walks.", 0, False]
    alt, spans = ["Shop! A hat <bbox>0, 0, 1, 1</bbox>", 2, True], [RED_HAT, 1, False]
    rows = read("blip3.yaml", *blip3(tmp_path, [words, alt, spans], [words, alt], [words], []))
    assert [row["status"] for row in rows] == ["kept"] * 4
    assert [row["caption_original"] for row in rows] == ["A man in a red hat walks.", "Shop! A hat", COGVLM, COGVLM]
    assert [len(row["given_noun_chunks"]) for row in rows] == [1, 1, 0, 0]
    (box,) = rows[0]["given_noun_chunks"]
    assert rows[0]["caption_original"][box["start"] : box["end"]] == "a red hat"
    assert corners([box]) == [[0.1, 0.2, 0.5, 0.6, 1.0]]
    extra = json.loads(rows[0]["extra"])
    assert extra == {"captions_published": repr([words, alt, spans]), "cogvlm_caption": COGVLM}


def test_a_damaged_box_of_blip3_leaves_the_next_caption(tmp_path: Path) -> None:
    (row,) = read("blip3.yaml", *blip3(tmp_path, [["a dog <bbox>0, 0, 1", 0, False], [RED_HAT, 1, False]]))
    assert row["caption_original"] == "A man in a red hat walks."


@pytest.mark.parametrize(
    ("text", "caption", "phrases"),
    [
        ("dog <bbox>0, 0, 1, 1</bbox>s on grass", "dogs on grass", ["dogs"]),
        ("Two cats <bbox>[0, 0][1, 1]</bbox> (<bbox>0, 0, .5, .5</bbox>).", "Two cats.", ["Two cats", "Two cats"]),
        ("(a man holding umbrella <bbox>0,0,1,1</bbox>)", "(a man holding umbrella)", ["umbrella"]),
        ("A cap (Starts at (-0.0, 0) and extends up to (1, 1)), red", "A cap, red", ["A cap"]),
        ("the man's T-shirt <bbox>0 0 1 1</bbox>", "the man's T-shirt", ["the man's T-shirt"]),
        ("a hat on dogs <bbox>0 0 1 1</bbox>", "a hat on dogs", ["dogs"]),
        ("a bowl of ripe fruit <bbox>0 0 1 1</bbox>", "a bowl of ripe fruit", ["fruit"]),
        ("two persons <bbox>0 0 1 1</bbox> and <bbox>0 0 .5 1</bbox> sit", "two persons and sit", ["two persons"] * 2),
        ('a sign "STOP" <bbox>0 0 1 1</bbox>', 'a sign "STOP"', ['a sign "STOP"']),
        ("Coke® <bbox>0 0 1 1</bbox> on ice", "Coke® on ice", ["Coke®"]),
        ("in front, chairs <bbox>0 0 1 1</bbox> stand", "in front, chairs stand", ["chairs"]),
    ],
)
def test_the_phrase_of_a_box_of_blip3_is_in_front_of_it(text: str, caption: str, phrases: list[str]) -> None:
    found, chunks = take_boxes(text, 10)
    assert found == caption
    assert [found[int(start) : int(end)] for start, end, *_ in chunks] == phrases


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("[['a dog", "no captions of BLIP3-GROUNDING: SyntaxError"),
        ("-" * 100_000 + "1", "no captions of BLIP3-GROUNDING"),
        ("[" * 5000, "no captions of BLIP3-GROUNDING"),
        ("__import__('os').getcwd()", "ValueError"),
        ({"a dog": 1}, "it needs a list of lists"),
        (["a dog"], "it needs a list of lists"),
        ("5", "TypeError"),
        ([[5, 1, False]], "TypeError"),
        ([["a dog <bbox>0, 0, 1</bbox>", 2, False]], "it needs 4 fractions"),
        ([["a dog (starts at [0, 0, 1] and extends upto [1])", 2, False]], "it needs 4 fractions"),
        ([["a dog <bbox>0, 0, 640, 480</bbox>", 2, False]], "it needs 4 fractions"),
        ([["a dog <bbox>0, 0, nan, 1</bbox>", 2, False]], "it needs 4 fractions"),
        ([["a dog <bbox>0, x, 1, 1</bbox>", 2, False]], "ValueError"),
        ([["a dog <bbox>0.9, 0, 0.1, 1</bbox>", 2, False]], "the smaller one first"),
        ([["a dog <bbox>0, 0, 1, 1", 2, False]], "is damaged"),
        ([["a dog <bbox><bbox>0, 0, 1, 1</bbox></bbox>", 2, False]], "is damaged"),
        ([["a dog (starts at [0, 0] and extends", 2, False]], "is damaged"),
        ([["<bbox>0, 0, 1, 1</bbox> a dog", 2, False]], "no word is in front"),
    ],
)
def test_damaged_boxes_of_blip3_cost_their_row_alone(entries: Any, message: str, tmp_path: Path) -> None:
    rows = read("blip3.yaml", *blip3(tmp_path, entries, [[RED_HAT, 1, False]]))
    assert [row["reason"] for row in rows] == ["bad_row", None]
    assert message in rows[0]["detail"]


@pytest.mark.parametrize(
    "text", ["(" * 300_000 + "<bbox>", "a " * 300_000 + "<bbox>", "<bbox>" * 60_000, "a <bbox>0 0 1 1</bbox>" * 30_000]
)
def test_a_hostile_caption_of_blip3_takes_linear_time(text: str, tmp_path: Path) -> None:
    rows = read("blip3.yaml", *blip3(tmp_path, [[text, 1, False]]))
    assert rows[0]["reason"] == "bad_row"


ABSENT = "a lane with no cars and a cow without a bell"
EMOJI = "\U0001f6b2\U0001f6b2 the blue bike by a wall"
ROWS: list[tuple[str, list[tuple[int, int]]]] = [
    (ABSENT, [(0, 6), (12, 19), (24, 29), (38, 44)]),
    (EMOJI, [(5, 18), (22, 28)]),  # units of UTF-16
    ("a gate", [(0, 6), (0, 7), (3, 3), (-4, 6)]),
    ("a &lt;b&gt; red&nbsp; box", [(5, 10)]),  # cleaning changes it
    *[("a red gate", [(3, 10)])] * 4,  # cut words
    ("a broken picture", [(0, 16)]),
]
LOST = {
    "not_in_caption": 1, "outside_caption": 2, "empty_span": 1, "other_units": 2, "absent": 2, "row_dropped_early": 1,
}  # fmt: skip


def given_rows(file: Path) -> None:
    """Rows with given boxes, each with its image; the last image is broken."""
    rows = []
    for number, (caption, spans) in enumerate(ROWS):
        image = b"no picture" if number == len(ROWS) - 1 else IMAGE[:-2] + bytes([number]) + IMAGE[-2:]
        chunks = [[*span, 0.1, 0.1, 0.9, 0.9, 0.95 if number else 0.5 + 0.1 * i] for i, span in enumerate(spans)]
        rows.append({"caption": caption, "noun_chunks": json.dumps(chunks), "image": image, "key": str(number)})
    pq.write_table(pa.Table.from_pylist(rows), file)


def boxes_of(output: Path) -> dict[str, Any]:
    """The counts of boxes in stats.json, which add up, in an output that is intact."""
    assert verify.main([str(output)]) == 0
    boxes = json.loads((output / "stats.json").read_text())["boxes"]
    assert boxes["found"] == boxes["kept"] + sum(boxes["removed"].values())
    return dict(boxes)


def test_given_boxes_add_up_through_a_job_a_merge_and_a_rewrite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given_rows(tmp_path / "in.parquet")
    settings = ("grounder=none", "scorer=none", "parse.model=none", "score.min_score=0.6")
    assert run_job(tmp_path / "in.parquet", tmp_path / "out", *settings) == 0
    printed = "".join(capsys.readouterr())
    assert "6 of the 16 given boxes have no phrase in their caption: not_in_caption 1, outside_caption 2" in printed
    assert (
        "given spans begin or end inside words in 5 of 9 rows; GRIT's spans count characters (code points)" in printed
    )
    n = sum(len(spans) for _, spans in ROWS)
    boxes = boxes_of(tmp_path / "out")
    assert boxes == {
        "found": n, "removed": LOST | {"low_score": 1}, "kept": n - sum(LOST.values()) - 1,
        "given": {"boxes": n, "rows": 9, "split": 5},
    }  # fmt: skip
    assert "other_units" in (tmp_path / "out" / "report.html").read_text()
    assert run_job(tmp_path / "in.parquet", tmp_path / "train", *settings, "formats=[train]") == 0
    assert boxes_of(tmp_path / "train") == {name: boxes[name] for name in ("found", "removed", "kept")}
    assert run_job(tmp_path / "in.parquet", tmp_path / "strict", *settings, "score.min_grounded_share=0.6") == 0

    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    local = ("ray.runner=local", "ray.cpu_workers=1")
    with running_here():
        sources = [f"source={tmp_path / name}" for name in ("out", "copy")]
        assert rewrite.main([*sources, f"output={tmp_path / 'both'}", *local]) == 0
        assert rewrite.main([sources[0], f"output={tmp_path / 'raised'}", "score.min_grounded_share=0.6", *local]) == 0
        (tmp_path / "list.txt").write_text(hashlib.sha256(IMAGE[:-2] + b"\0" + IMAGE[-2:]).hexdigest())
        assert takedown.main([str(tmp_path / "copy"), f"list={tmp_path / 'list.txt'}", *local]) == 0
    both = boxes_of(tmp_path / "both")
    assert both["removed"] == {name: 2 * count for name, count in boxes["removed"].items()}
    assert both["given"] == {name: 2 * count for name, count in boxes["given"].items()}
    assert boxes_of(tmp_path / "copy")["removed"] == {
        name: count for name, count in LOST.items() if name != "absent"
    }  # those of the row are gone with it
    raised = boxes_of(tmp_path / "raised")
    assert raised["removed"] == boxes["removed"] | {"row_dropped": 1}
    rows = [read_rows(tmp_path / name) for name in ("raised", "strict")]
    assert [[row["reason"] for row in found.values()].count("low_grounded_share") for found in rows] == [1, 1]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("name", ["coco", "odvg"])
def test_absent_things_are_in_no_export_and_no_pair_of_training(tmp_path: Path, name: str) -> None:
    given_rows(tmp_path / "in.parquet")
    settings = ("grounder=none", "scorer=none", "parse.model=none", "limit=1", "score.min_score=0")
    assert run_job(tmp_path / "in.parquet", tmp_path / "out", *settings) == 0
    assert export.main([str(tmp_path / "out"), f"output={tmp_path / name}", f"format={name}"]) == 0
    texts = [path.read_text() for path in (tmp_path / name).rglob("*.json*") if path.name != "pictures.jsonl"]
    with tarfile.open(tmp_path / "out" / "train" / "00000.tar") as tar:
        found = [tar.extractfile(member) for member in tar if re.search(r"parent\d+\.txt$", member.name)]
        pairs = {file.read().decode() for file in found if file}
    assert pairs == {"a lane", "a cow"}
    labels = re.findall(r'"(?:name|phrase|category)": ?"([^"]*)"', " ".join(texts).replace(ABSENT, ""))
    assert labels
    assert not [label for label in labels if "car" in label or "bell" in label]
