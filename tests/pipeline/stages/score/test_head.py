"""A linear head on the scorer's embeddings, made up here, and the distances of captions to the root."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hypergrit_common.errors import UserError
from hypergrit_common.images import decode
from pipeline.commands import rewrite, verify
from pipeline.stages.score.filters import ScoreConfig
from pipeline.stages.score.scorers import load_head, make_scorer
from tests.pipeline.commands.derive.outputs import read_rows
from tests.pipeline.jobs import N_SCENES, run_job
from trainer.checkpoints.model import load_model

PAIRS = ("grounder=none", "parse.model=none")
WEIGHTS = Path(__file__).parents[4] / "demo" / "weights"
LOCAL = ("ray.runner=local", "ray.cpu_workers=1")


def reasons(output: Path) -> dict[str, str | None]:
    return {key: row["reason"] for key, row in read_rows(output).items()}


def test_rows_below_the_threshold_of_a_head_are_dropped_now_or_later(
    tars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scorer = make_scorer(ScoreConfig())
    width = scorer.embed_texts(["a dog"]).shape[1]
    weight = torch.randn(1, width, generator=torch.Generator().manual_seed(0))
    save_file({"weight": weight, "bias": torch.tensor([0.5])}, tmp_path / "head.safetensors")
    arguments = (*PAIRS, f"score.head={tmp_path / 'head.safetensors'}")
    assert run_job(tars, tmp_path / "all", *arguments) == 0
    kept = [row for row in read_rows(tmp_path / "all").values() if row["status"] == "kept"]
    features = scorer.embed_images([decode(row["image"]) for row in kept])
    expected = (features @ weight[0] + 0.5).tolist()
    assert len(kept) == N_SCENES
    assert [row["head_score"] for row in kept] == pytest.approx(expected, abs=1e-5)

    least = (sorted(expected)[3] + sorted(expected)[4]) / 2
    limit = f"score.min_head_score={least}"
    assert run_job(tars, tmp_path / "now", *arguments, limit) == 0
    sources = [f"source={tmp_path / 'all'}", *LOCAL]
    assert rewrite.main([*sources, f"output={tmp_path / 'later'}", limit]) == 0
    assert list(reasons(tmp_path / "now").values()).count("low_head_score") == 4
    assert reasons(tmp_path / "later") == reasons(tmp_path / "now")
    assert verify.main([str(tmp_path / "later")]) == 0
    manifest = json.loads((tmp_path / "now" / "_manifests" / "00000.json").read_text())
    assert len(manifest["provenance"]["models"]["head"]["sha256"]) == 64
    assert manifest["provenance"]["thresholds"]["min_head_score"] == pytest.approx(least)
    lower = [f"source={tmp_path / 'now'}", f"output={tmp_path / 'lower'}", f"score.min_head_score={least - 1}", *LOCAL]
    assert rewrite.main(lower) == 2
    assert "score.keep_all=true" in capsys.readouterr().err


def test_captions_near_the_root_of_a_hyperbolic_model_are_dropped_now_or_later(tars: Path, tmp_path: Path) -> None:
    loaded = load_model(WEIGHTS / "hycoclip")
    arguments = (*PAIRS, f"score.head={WEIGHTS / 'hycoclip'}")
    assert run_job(tars, tmp_path / "all", *arguments) == 0
    kept = [row for row in read_rows(tmp_path / "all").values() if row["status"] == "kept"]
    with torch.inference_mode():
        expected = loaded.model.radius(loaded.model.encode_text(loaded.tokenizer([row["caption"] for row in kept])))
    assert [row["head_score"] for row in kept] == pytest.approx(expected.tolist(), abs=1e-4)
    least = float(expected.median())
    sources = [f"source={tmp_path / 'all'}", f"score.min_head_score={least}", *LOCAL]
    assert rewrite.main([*sources, f"output={tmp_path / 'later'}"]) == 0
    nearer = {row["key"] for row in kept if np.float32(row["head_score"]) < np.float32(least)}
    assert nearer == {key for key, reason in reasons(tmp_path / "later").items() if reason == "low_head_score"} != set()


@pytest.mark.parametrize(
    "tensors",
    [
        {"bias": torch.zeros(1)}, {"weight": torch.zeros(4), "bias": torch.zeros(2)}, {"weight": torch.zeros(3, 4)},
        {"weight": torch.zeros(4), "x": torch.zeros(1)}, {"weight": torch.zeros(0)},
    ],
)  # fmt: skip
def test_a_file_that_is_no_head_is_refused(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    save_file(tensors, tmp_path / "head.safetensors")
    with pytest.raises(UserError, match="a head has weight"):
        load_head(str(tmp_path / "head.safetensors"))


def test_a_head_is_read_before_a_row_is_read(tars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = tmp_path / "head.safetensors"
    arguments = (*PAIRS, f"score.head={head}", "score.min_head_score=0", *LOCAL)
    for make, text in (
        (lambda: None, "cannot be read: [Errno 2] No such file"),
        (lambda: head.write_text("no"), "is not a safetensors file"),
        (lambda: save_file({"weight": torch.full((128,), torch.nan)}, head), "values that are not finite"),
    ):
        make()
        assert run_job(tars, tmp_path / "out", *arguments) == 2
        assert text in capsys.readouterr().err
        assert not (tmp_path / "out" / "_job.json").exists()


def test_a_head_for_other_embeddings_is_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(4)}, tmp_path / "head.safetensors")
    with pytest.raises(UserError, match="give the head of this scorer"):
        load_head(str(tmp_path / "head.safetensors"))(torch.zeros(2, 5), ["a", "b"])
