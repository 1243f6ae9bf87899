"""Exports of a finished output, read by each format's own reader where it is installed."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import httpx
import huggingface_hub
import pyarrow as pa
import pytest
from huggingface_hub.errors import HfHubHTTPError

from hypergrit import __main__ as hypergrit
from hypergrit_common.paths import public_name
from pipeline.commands import export
from pipeline.commands.export_card import Card, text
from pipeline.commands.export_formats import FORMATS, stable
from pipeline.commands.export_licenses import Permits
from pipeline.output.store import Store
from pipeline.output.write.samples import kept_boxes
from pipeline.read.takedown import parse_takedown
from tests.pipeline.commands.derive.rows import rows_of
from tests.pipeline.commands.verify.damage import flip_behind

Row = dict[str, Any]


@pytest.fixture(scope="module")
def rows(finished: Path) -> dict[str, Row]:
    """The kept rows of the output by key."""
    found = {row["key"]: row for row in rows_of(finished) if row["status"] == "kept"}
    assert len(found) > 5
    return found


@pytest.fixture(scope="module")
def made(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of an export with a third of the pictures in val."""
    folder = tmp_path_factory.mktemp("export")

    def make(name: str) -> Path:
        if not (folder / name).exists():
            arguments = [f"output={folder / name}", f"format={name}", "validation=0.35", "seed=3", "license=cc-by-4.0"]
            assert hypergrit.main(["export", str(finished), *arguments]) == 0
        return folder / name

    return make


def boxes_of(row: Row) -> list[tuple[str, float, tuple[float, ...]]]:
    """Phrase, score and corners in pixels of the kept boxes of a row."""
    found = []
    for i in kept_boxes(row):
        box, chunk = row["boxes"][i], row["noun_chunks"][row["boxes"][i]["phrase"]]
        x, y = row["width"], row["height"]
        corners = (box["x_min"] * x, box["y_min"] * y, box["x_max"] * x, box["y_max"] * y)
        found.append((row["caption"][chunk["start"] : chunk["end"]], box["score"], corners))
    return found


def assert_same(found: list[tuple[str, float, tuple[float, ...]]], row: Row) -> None:
    expected = boxes_of(row)
    assert [phrase for phrase, *_ in found] == [phrase for phrase, *_ in expected]
    for (_, score, box), (_, other_score, other) in zip(found, expected, strict=True):
        assert (score, *box) == pytest.approx((other_score, *other), abs=1e-3)


def splits(folder: Path) -> dict[str, str]:
    lines = (folder / "pictures.jsonl").read_text().splitlines()
    return {line["key"]: line["split"] for line in map(json.loads, lines)}


def test_every_kept_row_is_in_pictures_jsonl_with_source_and_boxes(made: Any, rows: dict[str, Row]) -> None:
    lines = [json.loads(line) for line in (made("coco") / "pictures.jsonl").read_text().splitlines()]
    assert [line["key"] for line in lines] == list(rows)
    for line in lines:
        row = rows[line["key"]]
        assert (line["caption"], line["sha256"]) == (row["caption"], row["sha256"])
        size = (line["width"], line["height"]) * 2
        found = [
            (b["phrase"], b["score"], tuple(v * n for v, n in zip(b["box"], size, strict=True))) for b in line["boxes"]
        ]
        assert_same(found, row)


def test_coco_files_have_the_schema_of_detection_and_the_boxes(made: Any, rows: dict[str, Row]) -> None:
    folder, seen = made("coco"), set()
    for split in ("train", "val"):
        content = json.loads((folder / f"{split}.json").read_text())
        names = {category["id"]: category["name"] for category in content["categories"]}
        assert len(names) == len(set(names.values()))
        assert len({item["id"] for item in content["annotations"]}) == len(content["annotations"])
        for image in content["images"]:
            seen.add(image["key"])
            picture = cv2.imread(str(folder / image["file_name"]))
            assert picture.shape[:2] == (image["height"], image["width"])
            mine = [item for item in content["annotations"] if item["image_id"] == image["id"]]
            assert all(
                names[item["category_id"]] in item["phrase"] or names[item["category_id"]][:3] in item["phrase"]
                for item in mine
            )
            assert all(item["area"] == pytest.approx(item["bbox"][2] * item["bbox"][3]) for item in mine)
            found = [
                (item["phrase"], item["score"], (x, y, x + w, y + h)) for item in mine for x, y, w, h in [item["bbox"]]
            ]
            assert_same(found, rows[image["key"]])
            assert all(image["caption"][slice(*item["tokens_positive"][0])] == item["phrase"] for item in mine)
    assert seen == set(rows)


def test_odvg_lines_have_the_phrase_grounding_of_mm_grounding_dino(made: Any, rows: dict[str, Row]) -> None:
    folder, n = made("odvg"), 0
    for split in ("train", "val"):
        for line in map(json.loads, (folder / f"{split}.jsonl").read_text().splitlines()):
            grounding, key = line["grounding"], Path(line["filename"]).stem
            assert cv2.imread(str(folder / line["filename"])).shape[:2] == (line["height"], line["width"])
            for region in grounding["regions"]:
                assert grounding["caption"][slice(*region["tokens_positive"][0])] == region["phrase"]
            assert_same([(r["phrase"], r["score"], tuple(r["bbox"])) for r in grounding["regions"]], rows[key])
            n += 1
    assert n == len(rows)


def test_pycocotools_reads_the_files_and_finds_their_own_boxes(made: Any, rows: dict[str, Row]) -> None:
    coco, evaluation = pytest.importorskip("pycocotools.coco"), pytest.importorskip("pycocotools.cocoeval")
    for split in ("train", "val"):
        known = coco.COCO(str(made("coco") / f"{split}.json"))
        known.info()
        assert known.getCatIds(supNms=["thing"]) == known.getCatIds()
        fields = ("image_id", "category_id", "bbox", "score")
        found = known.loadRes([{name: item[name] for name in fields} for item in known.dataset["annotations"]])
        assert found.dataset["info"] == known.dataset["info"]
        result = evaluation.COCOeval(known, found, "bbox")
        for step in (result.evaluate, result.accumulate, result.summarize):
            step()
        assert result.stats[0] == pytest.approx(1.0)


def one_row(caption: str, phrase: str, **extra: Any) -> Row:
    """A kept row with a box of one phrase, without a parse."""
    start = caption.index(phrase)
    box = {"phrase": 0, "x_min": 0.0, "y_min": 0.0, "x_max": 0.5, "y_max": 0.5, "score": 0.75}
    return {
        "key": "0", "url": None, "sha256": "0", "width": 10, "height": 10, "clip_similarity": 0.25, "tokens": [],
        "caption": caption, "noun_chunks": [{"start": start, "end": start + len(phrase), "root": -1, "removed": None}],
        "boxes": [box], "box_scores": [{"area_px": 25.0, "clip_cosine": 0.25, "removed": None}],
        "extra": json.dumps(extra),
    }  # fmt: skip


def write(name: str, folder: Path, *rows: Row) -> Path:
    writer = FORMATS[name](folder)
    for row in rows:
        writer.add(export.record_of(row, "train", has_file=True), b"")
    writer.close()
    return folder / f"train.{'jsonl' if name == 'odvg' else 'json'}"


def test_licences_of_the_input_are_those_of_their_images(tmp_path: Path) -> None:
    by = "https://creativecommons.org/licenses/by/4.0/"
    extras: list[dict[str, Any]] = [
        {"license": by},
        {"LICENSE": "?"},
        {"Licence": "cc0"},
        {"license": by},
        {"license": 4},
    ]
    content = json.loads(write("coco", tmp_path, *(one_row("a dog", "a dog", **extra) for extra in extras)).read_text())
    names = ((by, by), ("cc0", ""), ("4", ""))
    assert content["licenses"] == [{"id": n, "name": name, "url": url} for n, (name, url) in enumerate(names, 1)]
    assert [image.get("license") for image in content["images"]] == [1, None, 2, 1, 3]
    assert content["info"]["description"]


def read_as_mmdetection(line: str) -> list[str]:
    """The texts of the spans, by the rule of mmdetection: they refer to the stripped caption in lower case."""
    grounding = json.loads(line)["grounding"]
    text = grounding["caption"].lower().strip()
    return [text[start:end] for region in grounding["regions"] for start, end in region["tokens_positive"]]


@pytest.mark.parametrize(
    ("caption", "phrase"),
    [
        ("İİ Diyarbakır: a RED Dog", "a RED Dog"),
        ("a DOG in İstanbul", "İstanbul"),
        ("\u3000 a dog, ΟΔΟΣ and ẞ", "ΟΔΟΣ"),
        ("İ", "İ"),
    ],
)
def test_spans_of_odvg_hold_in_the_text_of_its_reader(caption: str, phrase: str, tmp_path: Path) -> None:
    (line,) = write("odvg", tmp_path, one_row(caption, phrase)).read_text().splitlines()
    assert read_as_mmdetection(line) == [phrase.lower()]


def test_no_character_changes_its_length_in_lower_case() -> None:
    characters = [chr(i) for i in range(sys.maxunicode + 1)]
    assert [c for c in characters if len(c.lower()) != 1] == ["İ"]
    assert all(len(stable(c).lower()) == len(stable(c)) for c in characters)


WRITE_AND_READ_LANCE = """
import sys, lance, pyarrow as pa
from pipeline.commands.export import main
source, folder, copy = sys.argv[1:]
assert main([source, f"output={folder}", "format=lance", "validation=0.35", "seed=3"]) == 0
found = lance.dataset(f"{folder}/pictures.lance")
table = found.to_table(filter="split = 'train'", columns=["key", "image", "boxes", "width"])
with pa.ipc.new_file(copy, table.schema) as file:
    file.write_table(table)
assert found.count_rows() > table.num_rows > 0
"""


@pytest.mark.skipif(importlib.util.find_spec("lance") is None, reason="the package pylance")
def test_lance_reads_its_table(finished: Path, rows: dict[str, Row], tmp_path: Path) -> None:
    # In a process of its own: lance is not fork-safe, and tests of this process may fork.
    arguments = [str(finished), str(tmp_path / "lance"), str(tmp_path / "train.arrow")]
    subprocess.run([sys.executable, "-c", WRITE_AND_READ_LANCE, *arguments], check=True)
    table = pa.ipc.open_file((tmp_path / "train.arrow").read_bytes()).read_all()
    lines = (tmp_path / "lance" / "pictures.jsonl").read_text().splitlines()
    assert len(lines) == len(rows)
    assert {json.loads(line)["file"] for line in lines} == {None}  # the images are in the table alone
    for row in table.to_pylist():
        stored = rows[row["key"]]
        assert row["image"].startswith(b"\xff\xd8")
        assert [region["phrase"] for region in row["boxes"]] == [phrase for phrase, *_ in boxes_of(stored)]


def test_division_depends_on_the_seed_alone(made: Any, finished: Path, tmp_path: Path) -> None:
    first = splits(made("coco"))
    assert splits(made("odvg")) == first
    assert set(first.values()) == {"train", "val"}
    other = [f"output={tmp_path / 'x'}", "format=odvg", "validation=0.35", "seed=4"]
    assert hypergrit.main(["export", str(finished), *other]) == 0
    assert splits(tmp_path / "x") != first


def test_card_has_figures_licence_and_pictures_that_exist(made: Any, rows: dict[str, Row]) -> None:
    folder = made("coco")
    card = huggingface_hub.DatasetCard.load(folder / "README.md")
    assert card.data.license == "cc-by-4.0"
    assert f"| rows kept | {len(rows)} |" in card.text
    assert "| dropped by images as undecodable | 1 |" in card.text
    assert "| grounder | miniature |" in card.text
    pictures = re.findall(r"!\[sample\]\(([^)]*)\)", card.text)
    assert len(pictures) == 6
    assert all(cv2.imread(str(folder / name)) is not None for name in pictures)


@pytest.mark.parametrize(
    ("grounder", "boxes", "origin"),
    [("miniature", 3, "models located"), ("none", 3, "the boxes are given ones"), ("none", 0, "without boxes")],
)
def test_card_tells_models_only_where_they_located_boxes(
    grounder: str, boxes: int, origin: str, tmp_path: Path
) -> None:
    models = {role: {"name": grounder} for role in ("parser", "grounder", "scorer")}
    provenance = {"hypergrit": "1", "models": models, "thresholds": {"min_score": 0.65}}
    counts = {"read": 2, "kept": 2, "dropped": {}}
    manifest: Any = {"provenance": provenance, "counts": counts, "boxes": boxes}
    Card(tmp_path, [manifest], "webdataset", "other", Permits([])).write()
    card = huggingface_hub.DatasetCard.load(tmp_path / "README.md")
    assert origin in card.text
    assert ("grounded phrases" in card.text) == ("object-detection" in card.data.task_categories) == (boxes > 0)
    assert ("errors of the models" in card.text) == (grounder != "none")


@pytest.mark.parametrize(
    ("model", "name"),
    [("IDEA-Research/grounding-dino-tiny@main", "IDEA-Research/grounding-dino-tiny@main"),
     ("/home/jane/models/glip_t", "glip_t"), ("s3://bucket/glip_t/", "glip_t"),
     ("openai:http://10.0.0.7:8000/v1#Qwen/Qwen3-VL", "Qwen/Qwen3-VL")],
)  # fmt: skip
def test_a_card_names_models_without_folders_and_servers(model: str, name: str) -> None:
    assert public_name(model) == name


def test_texts_of_the_data_are_no_markdown() -> None:
    assert text("![x](http://a) <b>|\n# `c`") == r"\!\[x\]\(http\://a\) \<b\>\| \# \`c\`"


def test_croissant_describes_the_records(made: Any, rows: dict[str, Row]) -> None:
    content = json.loads((made("coco") / "croissant.json").read_text())
    columns = {field["source"]["extract"]["column"] for field in content["recordSet"][0]["field"]}
    (line, *_) = (made("coco") / "pictures.jsonl").read_text().splitlines()
    assert columns <= json.loads(line).keys()
    assert content["conformsTo"] == "http://mlcommons.org/croissant/1.0"


@pytest.mark.skipif(importlib.util.find_spec("mlcroissant") is None, reason="the package mlcroissant")
def test_mlcroissant_reads_the_records(made: Any, rows: dict[str, Row]) -> None:
    import mlcroissant

    dataset = mlcroissant.Dataset(jsonld=str(made("coco") / "croissant.json"))
    assert not dataset.metadata.issues.errors
    found = [record["pictures/file"].decode() for record in dataset.records("pictures")]
    assert [Path(name).stem for name in found] == list(rows)


class Hub:
    """The hub: what was called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.files: list[str] = []
        self.card = ""
        self.error: Exception | None = None

    def create_repo(self, **values: Any) -> None:
        if self.error:
            raise self.error
        self.calls.append(("create", values))

    def upload_folder(self, folder_path: str, **values: Any) -> None:
        self.files += sorted(path.name for path in Path(folder_path).iterdir())
        card = Path(folder_path) / "README.md"
        self.card = card.read_text() if card.exists() else self.card
        self.calls.append(("upload", values))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    return hub


def test_export_is_uploaded_to_a_private_repository(finished: Path, tmp_path: Path, hub: Hub) -> None:
    arguments = [f"output={tmp_path / 'x'}", "format=odvg", "to=hub", "repo=me/boxes", "licenses=[any]"]
    assert hypergrit.main(["export", str(finished), *arguments]) == 0
    place = {"repo_id": "me/boxes", "repo_type": "dataset"}
    assert hub.calls == [("create", {**place, "private": True, "exist_ok": True}), ("upload", place)]
    assert {"README.md", "croissant.json", "pictures.jsonl", "train.jsonl", "images"} <= set(hub.files)


def test_shards_are_uploaded_as_they_are_with_a_card(finished: Path, hub: Hub) -> None:
    assert hypergrit.main(["export", str(finished), "to=hub", "repo=me/shards", "licenses=[any]", "public=true"]) == 0
    (_, created), _, (_, shards) = hub.calls
    assert created["private"] is False
    assert shards["allow_patterns"] == ["grit/**", "train/**", "_index/**"]
    assert hub.files[0] == "README.md"
    assert "names no licences" in hub.card


def damage(output: Path) -> str:
    flip_behind(output / "grit/00000.tar")
    return "is damaged (grit/00000.tar: other content"


def list_row(output: Path) -> str:
    digest = next(row["sha256"] for row in rows_of(output) if row["status"] == "kept")
    Store(str(output)).record_takedowns(parse_takedown([digest], "list"))
    return "was taken down from"


@pytest.mark.parametrize("inject", [damage, list_row])
def test_neither_damage_nor_a_row_that_was_taken_down_is_exported(
    finished: Path, tmp_path: Path, hub: Hub, capsys: Any, inject: Callable[[Path], str]
) -> None:
    output = Path(shutil.copytree(finished, tmp_path / "out"))
    text = inject(output)
    for arguments in ([f"output={tmp_path / 'x'}", "format=odvg"], ["to=hub", "repo=me/shards"]):
        assert hypergrit.main(["export", str(output), *arguments]) == 2
        assert text in capsys.readouterr().err
    assert not hub.calls
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert hypergrit.main(["export", str(output), f"output={output / 'x'}", "format=odvg"]) == 2
    assert "is within the output" in capsys.readouterr().err


def test_an_export_ends_with_an_error_if_rows_are_taken_down_meanwhile(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    output, write = Path(shutil.copytree(finished, tmp_path / "out")), export.write_folder

    def late(*arguments: Any) -> None:
        write(*arguments)
        Store(str(output)).record_takedowns(parse_takedown(["http://x/0"], "list"))

    monkeypatch.setattr(export, "write_folder", late)
    assert hypergrit.main(["export", str(output), f"output={tmp_path / 'x'}", "format=odvg"]) == 2
    assert "rows are being taken down from" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_files_without_a_manifest_are_not_uploaded(finished: Path, tmp_path: Path, hub: Hub) -> None:
    output = Path(shutil.copytree(finished, tmp_path / "out"))
    (output / "_manifests/00001.json").unlink()
    (output / "grit/00000.tar.other-1-1.abcd.tmp").write_bytes(b"x")
    assert hypergrit.main(["export", str(output), "to=hub", "repo=me/shards", "licenses=[any]"]) == 0
    ignored = hub.calls[-1][1]["ignore_patterns"]
    assert {"grit/00001.tar", "train/00001.tar", "_index/00001.arrow", "grit/00000.tar.other-1-1.abcd.tmp"} <= {
        *ignored
    }
    assert not any("00000.tar" in name for name in ignored if not name.endswith(".tmp"))


@pytest.mark.parametrize("error", [OSError("401 Unauthorized"), httpx.ConnectError("401 Unauthorized")])
def test_refusal_of_the_hub_is_said(finished: Path, hub: Hub, capsys: Any, error: Exception) -> None:
    hub.error = error
    assert hypergrit.main(["export", str(finished), "to=hub", "repo=me/x", "licenses=[any]"]) == 2
    assert "the hub does not take me/x: 401 Unauthorized" in capsys.readouterr().err
    assert HfHubHTTPError.__mro__.count(OSError) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["format=coco"], "give output=FOLDER and format=FORMAT"),
        (["license=cc0"], "give output=FOLDER and format=FORMAT"),
        (["to=hub"], "repo=OWNER/NAME belong together"),
        (["output=x", "format=coco", "validation=1"], "give a share"),
        (["output=x", "format=coco", "license=a b"], "is no identifier"),
        (["output=x", "format=tf"], "format"),
        (["output=x", "format=coco", "frmat=odvg"], "is not a key"),
    ],
)
def test_wrong_arguments_end_in_one_line(finished: Path, arguments: list[str], message: str, capsys: Any) -> None:
    assert hypergrit.main(["export", str(finished), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_folder_with_files_is_refused_and_a_failed_export_leaves_nothing(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    assert hypergrit.main(["export", str(finished), f"output={tmp_path / 'full'}", "format=coco"]) == 2
    assert "is not empty" in capsys.readouterr().err

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(FORMATS["coco"], "add", fail)
    assert hypergrit.main(["export", str(finished), f"output={tmp_path / 'new'}", "format=coco"]) == 2
    assert "no space left" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_models_are_exported_as_before(capsys: Any) -> None:
    assert hypergrit.main(["export", "no_model", "no_folder"]) == 2
    assert "no_model" in capsys.readouterr().err
