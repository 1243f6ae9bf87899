"""Runs, saved models and evaluations with text towers of transformers."""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from hypergrit_common.errors import UserError
from tests.trainer.evaluation.held_out.test_evaluate import write_folder, write_shard
from tests.trainer.small import NAMES, most_in_rest
from tests.trainer.small_run import run, small_config, small_run
from tests.trainer.tiny_transformers import VARIED, tiny_encoder
from trainer import Model
from trainer.checkpoints.model import load_model
from trainer.evaluate import main as evaluate
from trainer.evaluation.embedder import CachedEmbedder
from trainer.inference.export import convert
from trainer.inference.hub import CARD, PARTS
from trainer.optim.freeze import LowRank
from trainer.text.fast_tokenizer import FastTokenizer
from trainer.training.accumulate import checkpoint_blocks, set_micro_batch, tower_blocks
from trainer.training.build import new_model

CAPTIONS = ["a cat", "the dog of a box: 12, 13"]


def tower(folder: Path, *others: str) -> list[str]:
    """The settings of a tower. Width, layers and heads are those of the small run."""
    sizes = (f"model.text.vocab_size={json.loads((folder / 'config.json').read_text())['vocab_size']}",)
    name = ("model.text.name=transformers", f"model.text.weights={folder}", f"tokenizer={folder}")
    return [*name, *sizes, "model.text.context_length=12", "steps=4", "optim.warmup_steps=1", *others]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny encoder."""
    return tiny_encoder("bert", tmp_path_factory.mktemp("bert"))


class Trained(NamedTuple):
    """A run with a tower of transformers and an evaluation, whose encoder's folder is gone, and its held-out data."""

    folder: Path
    shards: Path
    images: Path


@pytest.fixture(scope="module")
def trained(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    root = tmp_path_factory.mktemp("trained")
    folder = shutil.copytree(bert, root / "bert")
    found = Trained(root / "run", write_shard(root / "held_out"), write_folder(root / "images"))
    evaluation = f"evaluation.shards={found.shards}", f"evaluation.image_folders=[{found.images}]"
    assert run(found.folder, *tower(folder, *evaluation)) == 0
    shutil.rmtree(folder)
    return found


@pytest.mark.parametrize(
    "name",
    most_in_rest("clip syntax_meru", [name for name in NAMES if name not in ("taxonomy", "hyper3")]),  # they need more
)
def test_every_model_trains_and_loads_without_the_folder_of_the_encoder(tmp_path: Path, bert: Path, name: str) -> None:
    folder, output = shutil.copytree(bert, tmp_path / "bert"), tmp_path / "run"
    settings = tower(folder, f"model_name={name}")
    before = new_model(small_config(output, *settings)).state_dict()
    assert run(output, *settings) == 0
    shutil.rmtree(folder)
    model = Model.from_pretrained(output / "model", device="cpu")
    assert isinstance(model.tokenizer, FastTokenizer)
    key = "textual.encoder.encoder.layer.0.attention.self.query.weight"
    assert not torch.equal(model.module.state_dict()[key], before[key])
    model.save_pretrained(tmp_path / "copy")
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {CARD, *PARTS} - {"merges.txt"}
    copy = Model.from_pretrained(tmp_path / "copy", device="cpu")
    assert torch.equal(copy.encode_text(CAPTIONS), model.encode_text(CAPTIONS))


@pytest.mark.parametrize("kind", most_in_rest("t5", ("t5", "clip_text_model", "roberta")))
def test_a_run_resumes_with_the_same_weights(tmp_path: Path, kind: str) -> None:
    settings = tower(tiny_encoder(kind, tmp_path / kind), "save.every=2", "data.workers=1", "model.text.pooling=last")
    assert run(tmp_path / "whole", *settings) == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "step_00000004")
    shutil.rmtree(tmp_path / "parts" / "model")
    assert run(tmp_path / "parts", *settings) == 0
    whole, parts = (load_model(tmp_path / name).model.state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(whole[key], parts[key]) for key in whole)


def test_a_trained_model_is_evaluated_with_its_own_tokenizer(tmp_path: Path, trained: Trained) -> None:
    results = json.loads((trained.folder / "evaluation.json").read_text())
    data, out = [f"shards={trained.shards}", f"image_folders=[{trained.images}]"], f"output={tmp_path / 'found.json'}"
    assert evaluate([str(trained.folder), *data, "device=cpu", out]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found.keys() <= results.keys()
    assert any(key.endswith("accuracy") for key in found)
    assert all(abs(results[key] - value) < 1e-5 for key, value in found.items())


def test_features_are_cached_for_one_tokenizer_only(tmp_path: Path, trained: Trained) -> None:
    loaded = load_model(trained.folder)
    embedder = CachedEmbedder(loaded.model, loaded.tokenizer, tmp_path / "cache", workers=1)
    features = embedder.texts(CAPTIONS)
    torch.testing.assert_close(features, loaded.model.text_features(loaded.tokenizer(CAPTIONS)))
    assert isinstance(loaded.tokenizer, FastTokenizer)
    changed = FastTokenizer(loaded.tokenizer.definition.replace('"lowercase": true', '"lowercase": false'), 0, 12)
    assert CachedEmbedder(loaded.model, changed, tmp_path / "cache", workers=1).hash != embedder.hash


@pytest.mark.parametrize("kind", VARIED)
def test_recomputed_activations_give_the_same_gradients(tmp_path: Path, kind: str) -> None:
    settings = tower(tiny_encoder(kind, tmp_path / kind), "model.text.context_length=12")
    gradients = []
    for saves_memory in (False, True):
        parts = small_run(tmp_path / "run", *settings)
        model, batch = parts.model, next(iter(parts.loader))
        assert len(tower_blocks(model)) == 4
        if saves_memory:
            checkpoint_blocks(model)
            set_micro_batch(model, 3)
        torch.manual_seed(0)
        model(batch).loss.backward()
        gradients.append({name: value.grad for name, value in model.named_parameters()})
        parts.loader.close()
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=2e-5)


def test_parts_have_learning_rates_freezing_and_low_rank_updates_by_name(tmp_path: Path, bert: Path) -> None:
    settings = tower(
        bert,
        "optim.lr_ratios={textual: 0.1}",
        "optim.frozen_until={textual.encoder.embeddings: null}",
        "lora.ranks={textual.encoder.encoder.layer.*.attention: 2}",
    )
    parts = small_run(tmp_path / "run", *settings)
    names = {id(value): name for name, value in parts.model.named_parameters()}
    for group in parts.optimizer.param_groups:
        for value in group["params"]:
            name = names[id(value)]
            assert not name.startswith("textual.encoder.embeddings")
            assert group["lr_ratio"] == (0.1 if name.startswith("textual.") else 1.0)
            assert (group["weight_decay"] > 0) == (value.ndim > 1)
    updates = [module for module in parts.model.textual.modules() if isinstance(module, LowRank)]
    assert len(updates) == 2 * 4  # queries, keys, values and output of both layers
    assert run(tmp_path / "run", *settings) == 0
    before = new_model(small_config(tmp_path / "run", *settings)).state_dict()
    after = load_model(tmp_path / "run").model.state_dict()
    word = "textual.encoder.embeddings.word_embeddings.weight"
    query = "textual.encoder.encoder.layer.1.attention.self.query.weight"
    assert torch.equal(before[word], after[word])
    assert not torch.equal(before[query], after[query])


@pytest.mark.rest
def test_compiled_blocks_give_the_same_features(tmp_path: Path, bert: Path) -> None:
    settings = tower(bert)
    compiled = small_run(tmp_path / "run", *settings, "compile=true").model.eval()
    plain = small_run(tmp_path / "run", *settings).model.eval()
    ids = torch.tensor([[1, 5, 6, 2], [1, 5, 2, 0]])
    with torch.no_grad():
        torch.testing.assert_close(compiled.textual(ids), plain.textual(ids), rtol=1e-4, atol=1e-5)


def test_such_a_model_cannot_be_exported_to_open_clip(tmp_path: Path, trained: Trained) -> None:
    with pytest.raises(UserError, match="open_clip cannot represent this text tower"):
        convert(trained.folder, tmp_path / "out")


def test_a_saved_tokenizer_that_does_not_fit_is_an_error(tmp_path: Path, trained: Trained) -> None:
    path = shutil.copytree(trained.folder / "model", tmp_path / "model") / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"]["a new piece"] = 1000
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"tokenizer\.json gives 1001 tokens, the model has 92"):
        Model.from_pretrained(tmp_path / "model")
