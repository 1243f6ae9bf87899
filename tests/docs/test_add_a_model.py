"""The base-class model of docs/extending.md: the page contains its file, and the file works in every part of the trainer."""

import json
from pathlib import Path

import pytest
import torch

from docs.examples.order_model import OrderConfig, OrderEmbeddings
from tests.trainer import small_run
from tests.trainer.small import overfit, small_batch, small_model
from trainer.config import help_text
from trainer.models import registry
from trainer.models.registry import ModelEntry

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ModelEntry(OrderConfig, "docs.examples.order_model:OrderEmbeddings", is_experimental=True)
    monkeypatch.setitem(registry.ENTRIES, "order", entry)


def test_the_page_contains_the_file_verbatim_and_it_is_short() -> None:
    code = (ROOT / "docs" / "examples" / "order_model.py").read_text(encoding="utf-8")
    assert f"```python\n{code}```\n" in PAGE
    assert code.count("\n") < 100


def test_every_file_of_a_model_has_less_than_100_lines() -> None:
    """The page promises that a model is one short file."""
    files = {ROOT / f"{entry.location.partition(':')[0].replace('.', '/')}.py" for entry in registry.MODELS.values()}
    assert {file.name: n for file in files if (n := file.read_text(encoding="utf-8").count("\n")) >= 100} == {}


def test_the_model_learns_pairs_and_their_order() -> None:
    model, batch = small_model("order"), small_batch()
    assert isinstance(model, OrderEmbeddings)
    first, last = model(batch), overfit(model, batch)
    assert last.terms["contrastive/pairs"] < 0.5
    assert last.terms["entailment/cross_text"] < first.terms["entailment/cross_text"]
    general, specific = last.points["text"], last.points["image"]
    torch.testing.assert_close(last.energies["text_image"], (general - specific).relu().pow(2).sum(1))


def test_the_loss_is_the_weighted_sum_that_the_page_describes() -> None:
    terms = (losses := small_model("order")(small_batch())).terms
    torch.testing.assert_close(terms["contrastive"], (terms["contrastive/pairs"] + terms["contrastive/boxes"]) / 2)
    expected = terms["contrastive"] + 0.2 * terms["entailment"] + 1e-3 * terms["norms"]
    torch.testing.assert_close(losses.loss.detach(), expected)


def test_a_run_of_the_registered_model_is_trained_logged_saved_and_evaluated(tmp_path: Path) -> None:
    output = tmp_path / "run"
    shards = f"evaluation.shards={tmp_path / 'shards'}"
    assert small_run.run(output, "model_name=order", "data.boxes=all", "data.max_boxes=2", "steps=4", shards) == 0
    row = json.loads((output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert {"loss/norms", "loss/contrastive/boxes", "geometry/logit_scale"} <= row.keys()
    evaluation = json.loads((output / "evaluation.json").read_text(encoding="utf-8"))
    assert "entailment/cross_text/auc" in str(evaluation)
    assert "order" in help_text("usage", ["model_name=order"])
