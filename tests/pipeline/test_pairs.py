"""Pairs: rows without a box, in a job without models, and beside rows with boxes."""

import json
import random
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import webdataset as wds

from pipeline.commands import rewrite, takedown, verify
from tests.pipeline.commands.derive.outputs import read_rows
from tests.pipeline.jobs import N_SCENES, WITHOUT_MODELS, hash_output, run_job
from tests.pipeline.output.formats import defects

JOB = str(Path(__file__).resolve().parents[2] / "jobs" / "pipeline" / "pairs.yaml")
LOCAL = ("ray.runner=local", "ray.cpu_workers=1")
LIGHT = """
import sys
from importlib.abc import MetaPathFinder
from tests.model_packages import MODEL_PACKAGES
class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in MODEL_PACKAGES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in MODEL_PACKAGES else found(name, package)
from hypergrit.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
"""The command in an environment without the extra `models`; arguments as in the command line."""


@pytest.fixture(scope="module")
def pairs(tars: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("pairs") / "out"
    assert run_job(tars, output, *WITHOUT_MODELS) == 0
    return output


@pytest.fixture(scope="module")
def mixed(tars: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows with boxes beside pairs, since few boxes have this score."""
    output = tmp_path_factory.mktemp("mixed") / "out"
    assert run_job(tars, output, "ground.keep_pairs=true", "score.min_score=0.8") == 0
    return output


def one_box(sample: dict[str, Any]) -> list[tuple[Any, str]]:
    """What HyCoCLIP's and PHyCLIP's loader takes of a sample: the whole and one box, drawn from numparents.txt."""
    number = random.randrange(int(sample["numparents.txt"]))
    return [(sample[f"{name}.jpg"], sample[f"{name}.txt"]) for name in ("child", f"parent{number:03d}")]


def first_boxes(sample: dict[str, Any]) -> list[tuple[Any, str]]:
    """What UNCHA's takes: the whole and the first five boxes."""
    names = ["child", *(f"parent{i:03d}" for i in range(min(int(sample["numparents.txt"]), 5)))]
    return [(sample[f"{name}.jpg"], sample[f"{name}.txt"]) for name in names]


def some_boxes(sample: dict[str, Any]) -> list[tuple[Any, str]]:
    """What Hyper3-CLIP's takes: the whole and all boxes, at most five, drawn in the order of the shard."""
    n = int(sample["numparents.txt"])
    chosen = sorted(random.sample(range(n), 5)) if n > 5 else range(n)
    assert isinstance(sample["__key__"], str)
    return [(sample[f"{name}.jpg"], sample[f"{name}.txt"]) for name in ["child", *(f"parent{i:03d}" for i in chosen)]]


def test_the_loaders_of_other_projects_find_their_members_in_train_and_only_one_needs_a_box(mixed: Path) -> None:
    shards = sorted(map(str, (mixed / "train").glob("*.tar")))
    stages = (wds.SimpleShardList(shards), wds.tarfile_to_samples(), wds.decode("pil"))  # those of all three
    samples: list[dict[str, Any]] = list(wds.DataPipeline(*stages))
    with_boxes = [sample for sample in samples if int(sample["numparents.txt"])]
    assert 0 < len(with_boxes) < len(samples) == stats_of(mixed)["kept"]
    for take, read in ((one_box, with_boxes), (first_boxes, samples), (some_boxes, samples)):
        for sample in read:
            found = take(sample)
            assert all(image.convert("RGB").size == (224, 224) and text.strip() for image, text in found)
            assert len(found) == 1 + min(int(sample["numparents.txt"]), 1 if take is one_box else 5)
    without = next(sample for sample in samples if not int(sample["numparents.txt"]))
    with pytest.raises(ValueError, match="empty range"):
        one_box(without)
    assert not any(name.endswith("_box.txt") for sample in samples for name in sample)  # an old one of UNCHA's wants it


def stats_of(output: Path) -> dict[str, int]:
    stats = json.loads((output / "stats.json").read_text())
    return {"kept": stats["rows"]["kept"], "pairs": stats.get("pairs", 0)}


def test_a_job_without_models_keeps_every_image_with_its_caption(pairs: Path) -> None:
    assert stats_of(pairs) == {"kept": N_SCENES, "pairs": N_SCENES}
    assert defects(pairs) == []
    tars = sorted(map(str, (pairs / "grit").glob("*.tar")))
    samples = list(wds.WebDataset(tars, shardshuffle=False).decode("pil"))
    assert [sample["__key__"] for sample in samples] == [
        k for k, r in read_rows(pairs).items() if r["status"] == "kept"
    ]
    assert all(sample["jpg"].size == (sample["json"]["width"], sample["json"]["height"]) for sample in samples)
    assert all(sample["txt"] == sample["json"]["caption"] for sample in samples)


@pytest.mark.rest
def test_a_job_without_models_needs_no_libraries_of_models(tars: Path, pairs: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    verbs = (
        ["run", JOB, f"input={tars}", f"output={output}", "rows_per_shard=4", *LOCAL],
        ["verify", str(output)],
        ["explore", str(output), "report=true"],
        ["rewrite", f"source={output}", f"output={tmp_path / 'new'}", *LOCAL],
    )
    for arguments in verbs:
        subprocess.run([sys.executable, "-c", LIGHT, *arguments], check=True)
    assert run_job(tars, tmp_path / "here", JOB) == 0
    assert hash_output(tmp_path / "here") == hash_output(output)
    assert stats_of(output) == stats_of(pairs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "grounder=miniature, scorer=miniature, download.resize.kernel=bicubic: torch is not installed"),
        (["train", "shards=x", "output=y"], "torch is not installed; install the package with the extra models"),
    ],
)
def test_a_command_that_needs_models_tells_how_to_install_them(
    tars: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    if arguments == ["run"]:
        arguments = ["run", f"input={tars}", f"output={tmp_path / 'out'}", *LOCAL]
    run = subprocess.run([sys.executable, "-c", LIGHT, *arguments], capture_output=True, text=True)
    assert run.returncode == 2
    assert message in run.stderr


@pytest.mark.rest
def test_shards_of_pairs_that_are_computed_again_have_the_same_bytes(tars: Path, pairs: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert run_job(tars, output, *WITHOUT_MODELS, "limit=4") == 0
    first = output / "grit" / "00000.tar"
    before = first.stat().st_mtime_ns
    assert run_job(tars, output, *WITHOUT_MODELS) == 0
    assert first.stat().st_mtime_ns == before  # a finished shard is not written again
    (output / "_manifests" / "00001.json").unlink()
    (output / "grit" / "00001.tar").unlink()
    assert run_job(tars, output, *WITHOUT_MODELS) == 0
    assert hash_output(output) == hash_output(pairs)
    assert stats_of(output) == stats_of(pairs)


def captions(output: Path) -> list[str]:
    return [row["caption"] for row in read_rows(output).values() if row["status"] == "kept"]


def test_hugging_face_reads_pairs(pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    files = sorted(map(str, (pairs / "grit").glob("*.tar")))
    rows = list(datasets.load_dataset("webdataset", data_files=files, split="train", cache_dir=str(tmp_path)))
    assert [row["txt"] for row in rows] == captions(pairs)
    assert all(row["jpg"].size == (row["json"]["width"], row["json"]["height"]) for row in rows)


def read_by_open_clip(tars: Path, is_train: bool) -> list[str]:
    """The captions that the readers of open_clip's training find."""
    data = pytest.importorskip("open_clip_train.data")
    path = str(tars / "{00000..00002}.tar")
    arguments = SimpleNamespace(
        train_data=path, val_data=path, train_num_samples=N_SCENES, val_num_samples=N_SCENES, batch_size=3, workers=1,
        world_size=1, seed=0, train_data_upsampling_factors=None,
    )  # fmt: skip
    found = data.get_wds_dataset(arguments, lambda image: image.size[0], is_train, tokenizer=lambda text: [text])
    return [text for _, texts in found.dataloader for text in texts]


def with_its_webdataset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let open_clip meet what it has asked for (webdataset <= 0.2.86): no mark at the end of a tar."""
    data = pytest.importorskip("open_clip_train.data")
    monkeypatch.setattr(data, "tar_file_expander", partial(data.tar_file_expander, eof_value=None))


@pytest.mark.parametrize("is_train", [False, True])
def test_open_clip_reads_pairs(pairs: Path, monkeypatch: pytest.MonkeyPatch, is_train: bool) -> None:
    with_its_webdataset(monkeypatch)
    assert sorted(read_by_open_clip(pairs / "grit", is_train)) == sorted(captions(pairs))


def test_open_clips_reader_for_training_fails_on_any_tar_with_a_later_webdataset(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jpeg = next(row["jpg"] for row in wds.WebDataset(str(pairs / "grit" / "00000.tar"), shardshuffle=False))
    for shard in range(3):
        with wds.TarWriter(str(tmp_path / f"{shard:05d}.tar")) as tar:
            for i in range(3):
                tar.write({"__key__": f"{shard}{i}", "jpg": jpeg, "txt": "a dog"})
    with pytest.raises(KeyError, match="fname"):
        read_by_open_clip(tmp_path, is_train=True)
    with_its_webdataset(monkeypatch)
    assert read_by_open_clip(tmp_path, is_train=True) == ["a dog"] * 9


def test_summary_names_the_models_that_an_output_can_train(
    tars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_job(tars, tmp_path / "pairs", *WITHOUT_MODELS) == 0
    line = "can train: clip, meru, poinclip, atmg, euclip; not: syntax_meru (no parse)"
    assert line in capsys.readouterr().out
    assert run_job(tars, tmp_path / "mixed", "ground.keep_pairs=true", "score.min_score=0.8") == 0
    assert "argent, hyper3, hypergrit rewrite ... ground.keep_pairs=false first takes out" in capsys.readouterr().out
    assert line in (tmp_path / "pairs" / "report.html").read_text()


@pytest.mark.rest
def test_ray_writes_the_same_pairs(tars: Path, pairs: Path, tmp_path: Path) -> None:
    assert run_job(tars, tmp_path / "out", *WITHOUT_MODELS, "ray.runner=ray") == 0
    assert hash_output(tmp_path / "out") == hash_output(pairs)


def test_the_parse_travels_with_a_pair(tars: Path, tmp_path: Path) -> None:
    assert run_job(tars, tmp_path / "out", "grounder=none", "scorer=none") == 0
    rows = [row for row in read_rows(tmp_path / "out").values() if row["status"] == "kept"]
    assert len(rows) == N_SCENES
    assert all(row["tokens"] and row["boxes"] == [] for row in rows)


@pytest.mark.rest
def test_pairs_beside_rows_with_boxes_are_taken_out_again(tars: Path, mixed: Path, tmp_path: Path) -> None:
    found = stats_of(mixed)
    assert 0 < found["pairs"] < found["kept"] == N_SCENES
    assert verify.main([str(mixed)]) == 0
    assert run_job(tars, tmp_path / "boxes", "score.min_score=0.8") == 0
    arguments = [f"source={mixed}", f"output={tmp_path / 'new'}", *LOCAL]
    assert rewrite.main([*arguments, "ground.keep_pairs=false"]) == 0
    expected, new = read_rows(tmp_path / "boxes"), read_rows(tmp_path / "new")
    assert {key: row["reason"] for key, row in new.items()} == {key: row["reason"] for key, row in expected.items()}
    tars_of = [
        {k: v for k, v in hash_output(tmp_path / name).items() if k.endswith(".tar")} for name in ("new", "boxes")
    ]
    assert tars_of[0]
    assert tars_of[0] == tars_of[1]


@pytest.mark.rest
def test_pairs_beside_given_boxes_are_taken_out_of_a_job_without_a_grounder(mixed: Path, tmp_path: Path) -> None:
    assert run_job(mixed / "grit", tmp_path / "given", *WITHOUT_MODELS) == 0
    arguments = [f"source={tmp_path / 'given'}", f"output={tmp_path / 'new'}", *LOCAL, "ground.keep_pairs=false"]
    assert rewrite.main(arguments) == 0
    before, after = stats_of(tmp_path / "given"), stats_of(tmp_path / "new")
    assert 0 < before["pairs"] < before["kept"]
    assert after == {"kept": before["kept"] - before["pairs"], "pairs": 0}
    other = [f"source={tmp_path / 'given'}", f"output={tmp_path / 'all'}", *LOCAL]
    assert rewrite.main([*other, "score.min_score=0.8"]) == 0
    assert rewrite.main([*other, "score.min_score=0.8", "ground.keep_pairs=false"]) == 2  # made with other settings


def test_pairs_cannot_be_added_to_a_finished_output(
    tars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_job(tars, tmp_path / "boxes") == 0
    arguments = [f"source={tmp_path / 'boxes'}", f"output={tmp_path / 'new'}", *LOCAL]
    assert rewrite.main([*arguments, "ground.keep_pairs=true"]) == 2
    assert "has no images of rows without a box" in capsys.readouterr().err


def test_a_takedown_of_a_pair_is_counted(pairs: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    shutil.copytree(pairs, output)
    row = next(row for row in read_rows(output).values() if row["status"] == "kept")
    (tmp_path / "list.txt").write_text(row["sha256"])
    assert takedown.main([str(output), f"list={tmp_path / 'list.txt'}", *LOCAL]) == 0
    assert stats_of(output) == {"kept": N_SCENES - 1, "pairs": N_SCENES - 1}
    assert verify.main([str(output)]) == 0


def test_rows_are_filtered_by_the_similarity_of_image_and_caption(tars: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    assert run_job(tars, first, "grounder=none", "scorer=miniature", "parse.model=none") == 0
    cosines = sorted(r["clip_similarity"] for r in read_rows(first).values() if r["status"] == "kept")
    least = (cosines[3] + cosines[4]) / 2
    arguments = [f"source={first}", f"output={tmp_path / 'second'}", *LOCAL]
    assert rewrite.main([*arguments, f"score.min_image_similarity={least}"]) == 0
    limit = f"score.min_image_similarity={least}"
    assert run_job(tars, tmp_path / "third", "grounder=none", "scorer=miniature", "parse.model=none", limit) == 0
    for output in (tmp_path / "second", tmp_path / "third"):
        reasons = [row["reason"] for row in read_rows(output).values()]
        assert reasons.count("low_image_similarity") == 4
        assert stats_of(output)["kept"] == N_SCENES - 4
        assert verify.main([str(output)]) == 0
