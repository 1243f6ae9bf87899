"""The profile of a run."""

import gzip
import json
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.trainer.small_run import run, small_run
from trainer.training.profile import Profile, flops_of_row


def test_a_profile_writes_its_summary_and_a_trace(tmp_path: Path) -> None:
    assert run(tmp_path / "run", "log.profile=3") == 0
    folder = tmp_path / "run" / "profile"
    found = json.loads((folder / "summary.json").read_text())
    assert found["steps"] == 3
    assert found["step_ms"] > 0
    assert found["pairs_per_s_of_process"] == pytest.approx(8000 / found["step_ms"])
    assert found["mfu"] is None  # the peak of a CPU is not known
    assert 0 <= found["padding_share"] < 1
    assert 0.05 < found["peak_memory_gb"] < 20
    with gzip.open(folder / "trace.json.gz") as file:
        names = [event.get("name") for event in json.load(file)["traceEvents"]]
    assert sum(name == "aten::_fused_adamw_" for name in names) >= 3


def test_a_profile_counts_the_products_of_the_towers_and_the_padding_of_a_batch(tmp_path: Path) -> None:
    built = small_run(tmp_path / "run")
    batch = next(iter(built.loader))
    profile = Profile(built, 1)
    profile._count(batch)
    texts = (batch["text"].rows, batch["box_text"].rows)
    assert profile.padding == sum(int((ids == 0).sum()) for ids in texts)
    assert profile.tokens == sum(ids.numel() for ids in texts)
    with FlopCounterMode(display=False) as counter:
        images = built.model.image_features(torch.cat([batch["image"].rows, batch["box_image"].rows]))
        features = [images, *(built.model.text_features(ids) for ids in texts)]
        sum(part.sum() for part in features).backward()  # type: ignore[union-attr]
    assert profile.flops == pytest.approx(counter.get_total_flops(), rel=0.02)
    frozen = small_run(tmp_path / "run", "model.image.frozen=true")
    assert Profile(frozen, 1)._flops_of_row()(0) < profile._flops_of_row()(0) / 2
    assert flops_of_row(built.model.to("meta"), 8) > flops_of_row(built.model, 4)
