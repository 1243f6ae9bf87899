"""The full evaluation on tiny shards and image folders, and its command."""

import io
import json
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

from hypergrit_common.errors import UserError
from tests.trainer.data.samples import write_tar
from tests.trainer.evaluation.tasks.embedding import SIDE, model_and_tokenizer
from tests.trainer.released_files import write_released
from trainer.checkpoints.model import save_model
from trainer.data.preprocess import PreprocessConfig
from trainer.encoders.config import TextConfig
from trainer.evaluate import main, table
from trainer.evaluation.held_out.config import EvaluationConfig
from trainer.evaluation.held_out.evaluate import Evaluation
from trainer.evaluation.held_out.shards import HeldOutShards, embed_held_out
from trainer.evaluation.held_out.share import Sharing
from trainer.models.config import ModelConfig
from trainer.models.registry import build_model
from trainer.text.base import pad
from trainer.text.syntax import align, collate_trees

N = 5


def picture(shade: int) -> bytes:
    """A PNG of one colour."""
    file = io.BytesIO()
    PIL.Image.fromarray(np.full((SIDE, SIDE, 3), shade, np.uint8)).save(file, "PNG")
    return file.getvalue()


def save(folder: Path, name: str = "clip") -> Path:
    """Save a small model; return its folder."""
    model, tokenizer = model_and_tokenizer(name)
    save_model(folder, model, tokenizer=tokenizer, preprocess=PreprocessConfig(size_px=SIDE), record={})
    return folder


def write_shard(folder: Path, damaged: int | None = None, boxes: bool = True, parse: bool = False) -> str:
    """Write a shard of `N` samples and return its folder.

    The image of the sample `damaged` cannot be decoded. `parse` adds the parse of all captions but that of sample 1.
    """
    samples = []
    for i in range(N):
        members = {"child.jpg": picture(40 * i), "child.txt": f"caption {i}".encode()}
        members["numparents.txt"] = b"2" if boxes else b"0"
        for box in range(2 if boxes else 0):
            members |= {f"parent{box:03d}.jpg": picture(20 * i), f"parent{box:03d}.txt": f"box {box}".encode()}
        if parse and i != 1:
            tokens = [
                {"start": 0, "end": 7, "head": 0, "dep": "ROOT"},
                {"start": 8, "end": 9, "head": 0, "dep": "nummod"},
            ]
            members["json"] = json.dumps({"caption": f"caption {i}", "tokens": tokens}).encode()
        if i == damaged:
            members["child.jpg"] = b"not an image"
        samples.append((f"{i:03d}", members))
    return str(write_tar(folder / "00000.tar", samples).parent)


def write_folder(root: Path) -> str:
    for name in ("ant", "polar_bear"):
        (root / name).mkdir(parents=True)
        (root / name / "0.png").write_bytes(picture(90))
    return str(root)


def test_held_out_boxes_have_the_index_of_their_image(tmp_path: Path) -> None:
    held_out = HeldOutShards(write_shard(tmp_path / "shards")).read_part(range(N), 8)
    assert held_out.captions == [f"caption {i}" for i in range(N)]
    assert held_out.box_owner == [i for i in range(N) for _ in range(2)]
    assert held_out.box_texts == ["box 0", "box 1"] * N
    shades = [image.float().mean().item() for image in held_out.images]
    assert shades == pytest.approx([40 * i for i in range(N)], abs=2)


def test_a_damaged_held_out_sample_is_skipped_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shards = HeldOutShards(write_shard(tmp_path / "shards", damaged=3))
    held_out = shards.read_part(range(N), 8)
    assert held_out.captions == ["caption 0", "caption 1", "caption 2", "caption 4"]
    assert held_out.box_owner == [0, 0, 1, 1, 2, 2, 3, 3]
    model, tokenizer = model_and_tokenizer("clip")
    assert len(embed_held_out(model, tokenizer, shards, 2, Sharing()).owner) == 4
    assert embed_held_out(model, tokenizer, shards, 0, Sharing()).owner.tolist() == held_out.box_owner
    assert "sample 003 is skipped" in caplog.text
    assert "1 bad sample skipped" in caplog.text


@pytest.mark.parametrize("name", ["clip", "hycoclip", "phyclip", "poinclip"])
def test_every_result_has_a_chance_level(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = model_and_tokenizer(name)
    config = EvaluationConfig(
        image_folders=(write_folder(tmp_path / "animals"),), shards=write_shard(tmp_path / "shards")
    )
    monkeypatch.setattr(EvaluationConfig, "batch_size", 3)
    model.train()
    results = Evaluation(config)(model, tokenizer, "cpu")
    assert model.training
    assert all(0 <= value <= 1 for value in results.values())
    assert results["zero_shot/animals/chance"] == 0.5
    assert results["zero_shot/animals/accuracy_micro"] == 0.5  # the same picture in both of two classes
    assert results["retrieval/text_to_image/chance@1"] == pytest.approx(1 / N)
    assert results["retrieval/image_to_text/recall@5"] == 1.0
    entailments = {key.split("/")[1] for key in results if key.startswith("entailment/")}
    boxed = {"text_image", "box_text_image", "cross_image", "cross_text"}
    assert entailments == {"clip": set(), "poinclip": {"text_image"}}.get(name, boxed)


def test_words_of_parsed_captions_have_entailment_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = model_and_tokenizer("syntax_meru")
    config = EvaluationConfig(shards=write_shard(tmp_path / "shards", parse=True))
    monkeypatch.setattr(EvaluationConfig, "batch_size", 3)
    held_out = HeldOutShards(config.shards).read_part(range(N), 8)
    assert [words is not None for words in held_out.words] == [True, False, True, True, True]
    results = Evaluation(config)(model, tokenizer, "cpu")
    for name in ("text_image", "syntax_edge", "syntax_word"):
        assert {f"entailment/{name}/{key}" for key in ("order", "auc", "ap", "chance")} <= results.keys()
    ids, trees = zip(*(align(tokenizer, f"caption {i}", held_out.words[i] or ()) for i in (0, 2, 3, 4)), strict=True)
    with torch.no_grad():
        points = model.word_points(pad(ids), collate_trees(trees))
    nearer = (model.radius(points["child"]) < model.radius(points["head"])).float().mean().item()
    assert results["entailment/syntax_edge/order"] == pytest.approx(nearer)


def test_shards_without_parses_or_boxes_have_results_for_captions(tmp_path: Path) -> None:
    for name, boxes in (("syntax_meru", True), ("hycoclip", False)):
        shards = write_shard(tmp_path / name, boxes=boxes)
        results = Evaluation(EvaluationConfig(shards=shards))(*model_and_tokenizer(name), "cpu")
        assert {key.split("/")[1] for key in results if key.startswith("entailment/")} == {"text_image"}


def test_the_command_evaluates_a_saved_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "model", "meru")
    shards, output = write_shard(tmp_path / "shards"), tmp_path / "results.json"
    assert main([str(tmp_path / "model"), f"shards={shards}", f"output={output}"]) == 0
    results = json.loads(output.read_text())
    output.unlink()
    assert main([str(tmp_path), f"shards={shards}", f"output={output}"]) == 0
    assert json.loads(output.read_text()) == results
    assert main([str(tmp_path), f"shards={shards}", "every=10"]) == 2
    assert f"{100 * results['retrieval/text_to_image/recall@1']:.2f} %" in capsys.readouterr().out


def test_the_command_merges_yaml_files_and_arguments_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path / "model")
    shards = write_shard(tmp_path / "shards")
    (tmp_path / "data.yaml").write_text(f"shards: {shards}\nmax_samples: 5\n")
    (tmp_path / "fast.yaml").write_text("max_samples: 2\n")
    yaml_files = [str(tmp_path / name) for name in ("data.yaml", "fast.yaml")]
    for arguments, n in (([], 2), (["max_samples=4"], 4)):
        output = tmp_path / f"{n}.json"
        assert main([str(tmp_path / "model"), *yaml_files, f"output={output}", *arguments]) == 0
        assert json.loads(output.read_text())["retrieval/text_to_image/chance@1"] == pytest.approx(1 / n)
    assert main(yaml_files) == 2
    assert f"the first argument is {yaml_files[0]!r}; give the model first" in capsys.readouterr().err


def test_the_command_evaluates_a_released_file_with_model_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = build_model("clip", ModelConfig(text=TextConfig(width=64, layers=1, heads=1), embed_dim=16))
    write_released(tmp_path / "clip.pth", model)
    shards = write_shard(tmp_path / "shards")
    assert main([str(tmp_path / "clip.pth"), f"shards={shards}"]) == 2
    assert "give model_name, one of clip" in capsys.readouterr().err
    assert main([str(tmp_path / "clip.pth"), f"shards={shards}", "model_name=clip"]) == 0
    assert "retrieval/text_to_image/recall@1" in capsys.readouterr().out
    beside = str(save(tmp_path / "beside", "meru"))
    assert main([beside, f"shards={shards}", "model_name=clip"]) == 2  # alone, its own name is another
    assert main([beside, str(tmp_path / "clip.pth"), f"shards={shards}", "model_name=clip"]) == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [("config.json", ": 'model' is missing"), ("model.safetensors", " is not a safetensors file")],
)
def test_a_damaged_file_of_the_model_is_an_error_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    (save(tmp_path) / name).write_text('{"format": 1}')
    assert main([str(tmp_path), "shards=x"]) == 2
    assert f"error: {tmp_path / name}{message}" in capsys.readouterr().err


def test_results_are_printed_even_if_the_output_file_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = save(tmp_path) / "config.json" / "results.json"
    assert main([str(tmp_path), f"shards={write_shard(tmp_path / 'shards')}", f"output={output}"]) == 2
    printed = capsys.readouterr()
    assert f"output={output} cannot be written" in printed.err
    assert "retrieval/text_to_image/recall@1" in printed.out


@pytest.mark.parametrize(("key", "value"), [("shards", "{}"), ("image_folders", "[{}]")])
def test_data_that_do_not_exist_are_an_error_that_names_the_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, value: str
) -> None:
    assert main([str(save(tmp_path)), f"{key}={value.format(tmp_path / 'none')}"]) == 2
    assert f"error: {key}: {tmp_path / 'none'} " in capsys.readouterr().err


def test_missing_settings_and_models_are_errors_that_name_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = str(tmp_path / "none")
    for arguments, part in (
        ([str(tmp_path), "shards=x", "prompts=[no class]"], "prompts holds 'no class'"),
        ([str(tmp_path)], "nothing to evaluate on"),
        ([none, "shards=x"], f"{none} does not exist"),
        (["shards=x"], "the first argument is 'shards=x'"),
    ):
        assert main(arguments) == 2
        assert part in capsys.readouterr().err


def test_more_bad_samples_or_damaged_shards_than_the_stated_share_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = model_and_tokenizer("clip")
    shards = write_shard(tmp_path / "shards", damaged=3)
    with pytest.raises(UserError, match=r"1 of the 5 samples read are bad, more than a share of 0\.1, .* 003 "):
        Evaluation(EvaluationConfig(shards=shards))(model, tokenizer, "cpu")
    with monkeypatch.context() as patch:
        patch.setattr(EvaluationConfig, "max_bad_share", 0.2)
        results = Evaluation(EvaluationConfig(shards=shards))(model, tokenizer, "cpu")
    assert results["retrieval/text_to_image/chance@1"] == 1 / 4
    shard = tmp_path / "shards" / "00000.tar"
    shard.write_bytes(shard.read_bytes()[:-11_000])
    with pytest.raises(UserError, match=r"^shards: 1 of the 1 shards are damaged, more than a share of 0\.1, "):
        Evaluation(EvaluationConfig(shards=shards))


def test_files_that_are_no_usable_images_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, tokenizer = model_and_tokenizer("clip")
    animals = write_folder(tmp_path / "animals")
    first, *_ = sorted((tmp_path / "animals").iterdir())
    n = len([*(tmp_path / "animals").rglob("*.png")])
    expected = Evaluation(EvaluationConfig(image_folders=(animals,)))(model, tokenizer, "cpu")
    (first / "cut.jpg").write_bytes(picture(9)[:40])
    (first / "empty.png").touch()
    results = Evaluation(EvaluationConfig(image_folders=(animals,)))(model, tokenizer, "cpu")
    assert results.pop("zero_shot/animals/unreadable") == pytest.approx(2 / (n + 2))
    assert results == expected
    assert "animals: 2 unreadable images left out, such as " in caplog.text
    for path in first.glob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(UserError, match=f"no file of the class {first.name} of animals can be read as an image"):
        Evaluation(EvaluationConfig(image_folders=(animals,)))(model, tokenizer, "cpu")


def test_folders_and_shards_are_listed_once_for_all_evaluations_of_a_run(tmp_path: Path) -> None:
    model, tokenizer = model_and_tokenizer("clip")
    animals, shards = write_folder(tmp_path / "animals"), write_shard(tmp_path / "shards")
    evaluation = Evaluation(EvaluationConfig(image_folders=(animals,), shards=shards))
    (tmp_path / "animals" / "zebra").mkdir()
    (tmp_path / "animals" / "zebra" / "0.png").write_bytes(picture(0))
    (tmp_path / "shards" / "00001.tar").write_bytes(b"")
    results = evaluation(model, tokenizer, "cpu")
    assert results["zero_shot/animals/chance"] == 1 / 2
    assert results["retrieval/text_to_image/chance@1"] == pytest.approx(1 / N)


def test_the_table_has_metric_and_chance_and_a_column_for_each_model() -> None:
    first = {"zero_shot/a/accuracy": 0.5, "zero_shot/a/chance": 0.1, "retrieval/x/recall@5": 0.25}
    first |= {"retrieval/x/chance@5": 0.05, "lone": 1.0}
    second = {"retrieval/x/recall@5": 0.5, "y/order": 1.0, "y/chance": 0.5}
    assert [line.split() for line in table({"m": first}).splitlines()][:2] == [
        ["metric", "value", "chance"],
        ["zero_shot/a/accuracy", "50.00", "%", "10.00", "%"],
    ]
    assert [line.split() for line in table({"meru": first, "hycoclip": second}).splitlines()] == [
        ["metric", "meru", "hycoclip", "chance"],
        ["zero_shot/a/accuracy", "50.00", "%", "-", "10.00", "%"],
        ["retrieval/x/recall@5", "25.00", "%", "50.00", "%", "5.00", "%"],
        ["lone", "100.00", "%", "-"],
        ["y/order", "-", "100.00", "%", "50.00", "%"],
    ]
