"""VL-CheckList on invented corpora in its layout."""

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest
from torch import Tensor

from hypergrit_common.errors import UserError
from tests.trainer.evaluation.tasks.fake_embedder import FakeEmbedder, constant, random_vector
from trainer.evaluation.task import ImageSource, MissingFilesError, TaskOptions
from trainer.evaluation.tasks.vlchecklist import COLUMNS, evaluate

Write = Callable[..., Path]
Rule = Literal["released", "paper"]


def pair(image: int, true: str = "lamp ON desk", false: str = "cow ON desk") -> list[object]:
    return [f"VG_100K/{image}.jpg", {"POS": [true, "second"], "NEG": [false]}]


def write_corpus(write: Write, column: str, name: str, pairs: list[list[object]], missing: int = 0) -> None:
    """One corpus, all images but the first `missing` ones."""
    part = COLUMNS[column]
    annotations = f"data/{part}/{name}.json"
    yaml = f'ANNO_PATH: "{annotations}"\nIMG_ROOT: "vg/"\nTYPE: "TUPLE_JSON"\n'
    write(f"vl_checklist/corpus/v1/{part}/{name}.yaml", yaml)
    write(f"vl_checklist/{annotations}", pairs)
    for entry in pairs[missing:]:
        write(f"vl_checklist/vg/{entry[0]}")


def write_all(write: Write) -> None:
    for column in COLUMNS:
        corpora = {"object": ("vg_obj", "hake"), "attribute": ("vg", "vaw"), "relation": ("vg", "swig")}
        for name in corpora[column.split("/")[0]]:
            write_corpus(write, column, name, [pair(i) for i in range(4)])


def lamp(item: object) -> Tensor:
    wanted = isinstance(item, ImageSource) or str(item).startswith("lamp")
    return random_vector("lamp") * (1 if wanted else -1)


def test_all_13_columns_their_corpora_and_means_are_reported(tmp_path: Path, write: Write) -> None:
    write_all(write)
    result = evaluate(FakeEmbedder(text=lamp, image=lamp), tmp_path, TaskOptions())
    assert len(COLUMNS) == 13
    assert {"object", "attribute", "relation", *COLUMNS} <= result.metrics.keys()
    assert set(result.metrics.values()) == {1.0}
    assert {"object/center/vg_obj", "object/center/hake", "attribute/color/vaw"} <= result.metrics.keys()
    assert len(result.checksums) == 1 + 2 * 26  # the folder of the corpora, their files and annotations
    assert result.n_used == 4 * 26


def test_column_is_one_corpus_by_the_released_rule_and_the_mean_by_the_paper(tmp_path: Path, write: Write) -> None:
    write_corpus(write, "attribute/color", "vg", [pair(0)])
    write_corpus(write, "attribute/color", "vaw", [pair(0, "cow", "lamp")])
    embedder = FakeEmbedder(text=lamp, image=lamp)
    released = evaluate(embedder, tmp_path, TaskOptions()).metrics
    assert released == {
        "attribute/color": 1,
        "attribute/color/mean": 0.5,
        "attribute/color/vg": 1,
        "attribute/color/vaw": 0,
    }
    assert evaluate(embedder, tmp_path, TaskOptions(rule="paper")).metrics["attribute/color"] == 0.5


def test_first_thousand_pairs_are_used_by_the_released_rule_and_all_by_the_paper(tmp_path: Path, write: Write) -> None:
    pairs = [pair(0)] * 1000 + [pair(0, "cow", "lamp")] * 1000
    write_corpus(write, "relation/spatial", "vg", pairs)
    embedder = FakeEmbedder(text=lamp, image=lamp)
    released = evaluate(embedder, tmp_path, TaskOptions())
    every = evaluate(embedder, tmp_path, TaskOptions(rule="paper"))
    assert (released.n_used, released.metrics["relation/spatial"]) == (1000, 1.0)
    assert (every.n_used, every.metrics["relation/spatial"]) == (2000, 0.5)
    assert evaluate(embedder, tmp_path, TaskOptions(max_examples=7)).n_used == 7
    assert evaluate(embedder, tmp_path, TaskOptions(max_examples=5000)).n_used == 1000


def test_constant_model_is_always_wrong(tmp_path: Path, write: Write) -> None:
    write_all(write)
    result = evaluate(FakeEmbedder(text=constant, image=constant), tmp_path, TaskOptions())
    assert set(result.metrics.values()) == {0.0}


def test_images_are_squeezed_and_normalized_twice_on_request(tmp_path: Path, write: Write) -> None:
    write_corpus(write, "object/mid", "vg_obj", [pair(0)])
    embedder = FakeEmbedder()
    evaluate(embedder, tmp_path, TaskOptions())
    evaluate(embedder, tmp_path, TaskOptions(vlc_legacy_norm=True))
    assert [(call["fit"], call["legacy_norm"]) for call in embedder.calls] == [("squeeze", False), ("squeeze", True)]


def test_missing_images_and_captions_are_counted_and_damaged_captions_reach_the_model_unchanged(
    tmp_path: Path, write: Write
) -> None:
    pairs = [pair(0), pair(1), pair(2, false=" desk"), pair(3, false=""), ["VG_100K/4.jpg", {"POS": ["a"], "NEG": []}]]
    write_corpus(write, "object/large", "vg_obj", pairs, missing=1)
    write_corpus(write, "object/large", "hake", [pair(9)], missing=1)
    texts: list[str] = []
    embedder = FakeEmbedder(text=lambda text: texts.append(text) or lamp(text), image=lamp)  # type: ignore[func-returns-value]
    result = evaluate(embedder, tmp_path, TaskOptions())
    assert set(texts) == {"lamp ON desk", "cow ON desk", " desk"}
    assert (result.n_used, result.skipped) == (2, {"no caption": 2, "missing image": 2})
    assert result.details["damaged_captions"] == {"object/large/vg_obj": 1}
    assert set(result.details["missing"]) == {"object/large/hake", *COLUMNS} - {"object/large"}  # type: ignore[call-overload]
    assert "object/large/hake" not in result.metrics


@pytest.mark.parametrize("rule", ["released", "paper"])
def test_each_missing_column_is_named_with_its_layout(tmp_path: Path, write: Write, rule: Rule) -> None:
    write_all(write)
    shutil.rmtree(tmp_path / "vl_checklist/corpus/v1/Attribute/color")
    (tmp_path / "vl_checklist/corpus/v1/Object/Size/small/vg_obj.yaml").unlink()
    result = evaluate(FakeEmbedder(text=lamp, image=lamp), tmp_path, TaskOptions(rule=rule))
    missing: dict[str, str] = result.details["missing"]  # type: ignore[assignment]
    assert missing.keys() == ({"attribute/color", "object/small"} if rule == "released" else {"attribute/color"})
    for column, reason in missing.items():
        name = {"attribute/color": "vg.yaml", "object/small": "vg_obj.yaml"}[column]
        assert f"corpus/v1/{COLUMNS[column]}/" in reason
        assert name in reason
        assert "\n" not in reason


def test_few_malformed_entries_among_those_used_are_skipped_and_others_do_not_count(
    tmp_path: Path, write: Write
) -> None:
    write_corpus(write, "object/mid", "vg_obj", [*([pair(0)] * 99), ["VG_100K/0.jpg"], *([["VG_100K/0.jpg"]] * 900)])
    used = evaluate(FakeEmbedder(text=lamp, image=lamp), tmp_path, TaskOptions(max_examples=100))
    assert (used.n_used, used.skipped) == (99, {"malformed entry of object/mid/vg_obj": 1})
    assert list(used.details["malformed"]) == ["object/mid/vg_obj, item 99"]  # type: ignore[call-overload]
    before = evaluate(FakeEmbedder(text=lamp, image=lamp), tmp_path, TaskOptions(max_examples=99))
    assert (before.n_used, before.skipped, before.details["malformed"]) == (99, {}, {})


def test_a_link_to_another_disk_is_followed(tmp_path: Path, write: Write) -> None:
    write_corpus(write, "object/mid", "vg_obj", [pair(0)])
    (tmp_path / "vl_checklist/data").rename(tmp_path / "disk")
    (tmp_path / "vl_checklist/data").symlink_to(tmp_path / "disk")
    assert evaluate(FakeEmbedder(), tmp_path, TaskOptions()).n_used == 1


def test_damaged_and_malformed_corpora_do_not_stop_the_others(tmp_path: Path, write: Write) -> None:
    write_all(write)
    write("vl_checklist/corpus/v1/Object/Size/small/hake.yaml", "ANNO_PATH: [")
    write_corpus(write, "object/mid", "hake", [["VG_100K/1.jpg"]], missing=1)
    result = evaluate(FakeEmbedder(text=lamp, image=lamp), tmp_path, TaskOptions())
    assert result.details["malformed"].keys() == {"object/small/hake", "object/mid/hake"}  # type: ignore[attr-defined]
    assert "hake.json, entry 0" in result.details["malformed"]["object/mid/hake"]  # type: ignore[index]
    assert {"object", "attribute", "relation", *COLUMNS} <= result.metrics.keys()
    assert result.metrics["object/mid"] == 1
    assert result.n_used == 4 * 24
    assert "object/small/hake" not in result.metrics


def test_checksums_cover_the_corpus_files(tmp_path: Path, write: Write) -> None:
    write_corpus(write, "object/mid", "vg_obj", [pair(0)])
    before = evaluate(FakeEmbedder(), tmp_path, TaskOptions()).checksums
    name = "vl_checklist/corpus/v1/Object/Location/mid/vg_obj.yaml"
    (tmp_path / name).write_text((tmp_path / name).read_text().replace("vg/", "./vg/"))
    after = evaluate(FakeEmbedder(), tmp_path, TaskOptions()).checksums
    changed = {key for key, value in before.items() if after[key] != value}
    assert changed == {name, "vl_checklist/corpus/v1"}


def test_missing_data_is_named(tmp_path: Path, write: Write) -> None:
    with pytest.raises(MissingFilesError, match=r"vl_checklist/corpus/v1 is missing"):
        evaluate(FakeEmbedder(), tmp_path, TaskOptions())
    write_corpus(write, "object/mid", "vg_obj", [pair(0)])
    (tmp_path / "vl_checklist/data/Object/Location/mid/vg_obj.json").unlink()
    with pytest.raises(MissingFilesError, match="no usable corpus"):
        evaluate(FakeEmbedder(), tmp_path, TaskOptions())


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (["VG_100K/1.jpg"], "entry 1: item 1 is not of type dict"),
        (["VG_100K/1.jpg", {"POS": ["a"]}], "entry 1: 'NEG' is missing"),
        (["VG_100K/1.jpg", {"POS": "a", "NEG": ["b"]}], "entry 1: 'POS' is 'a'; it must be of type list"),
        (["VG_100K/1.jpg", {"POS": [3], "NEG": ["b"]}], "entry 1: item 0 is not of type str"),
    ],
)
def test_malformed_entries_are_user_errors(tmp_path: Path, write: Write, entry: list[object], message: str) -> None:
    write_corpus(write, "object/mid", "vg_obj", [pair(0), entry])
    with pytest.raises(UserError, match=rf"vg_obj\.json, {message}"):
        evaluate(FakeEmbedder(), tmp_path, TaskOptions())


@pytest.mark.parametrize(
    "content",
    [
        "ANNO_PATH: [",
        "- 1\n",
        "ANNO_PATH: data\n",
        "ANNO_PATH: /etc/data.json\nIMG_ROOT: vg\n",
        "ANNO_PATH: ../../../../../etc/passwd\nIMG_ROOT: vg\n",
        "ANNO_PATH: data/../../x.json\nIMG_ROOT: vg\n",
        "[" * 5000,
        "&a {<<: *a}",
        "ANNO_PATH: !!int ''",
        "a: &a [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefghijkl"))
        + "ANNO_PATH: *l\nIMG_ROOT: vg\n",
    ],
)
def test_malformed_corpus_files_are_user_errors(tmp_path: Path, write: Write, content: str) -> None:
    write("vl_checklist/corpus/v1/Object/Size/small/vg_obj.yaml", content)
    with pytest.raises(UserError, match=r"small/vg_obj\.yaml") as found:
        evaluate(FakeEmbedder(), tmp_path, TaskOptions())
    assert len(str(found.value)) < 500
    assert "\n" not in str(found.value)
