"""Runs, saved models and evaluations with text towers of transformers."""

import shutil
from pathlib import Path

import pytest
import torch

from common.errors import UserError
from tests.trainer.small import NAMES
from tests.trainer.small_run import run, small_config, small_run
from tests.trainer.tiny_transformers import KINDS, tiny_encoder
from trainer import Model
from trainer.accumulate import checkpoint_blocks, set_micro_batch, tower_blocks
from trainer.build import new_model
from trainer.checkpoints.model import load_model
from trainer.evaluation.embedder import CachedEmbedder
from trainer.export import convert
from trainer.text.fast_tokenizer import FastTokenizer

CAPTIONS = ["a cat", "the dog of a box: 12, 13"]
SIZES = ("vocab_size=null", "context_length", "width", "layers", "heads")


def tower(folder: Path, *others: str) -> list[str]:
    """Settings of a tower; they replace the sizes of the small run by those of the encoder."""
    return ["model.text.name=transformers", f"model.text.weights={folder}", f"tokenizer={folder}", *SIZED, *others]


SIZED = ("model.text.vocab_size=92", "model.text.context_length=20")
"""Of the tiny BERT; width, layers and heads are those of the small run."""


@pytest.mark.parametrize("name", NAMES)
def test_every_model_trains_and_loads_without_the_folder_of_the_encoder(tmp_path: Path, name: str) -> None:
    folder = tiny_encoder("bert", tmp_path / "bert")
    output = tmp_path / "run"
    settings = tower(folder, f"model_name={name}", "steps=3", "optim.warmup_steps=1", "model.embed_dim=16")
    assert run(output, *settings) == 0
    before = new_model(small_config(output, *settings)).state_dict()
    shutil.rmtree(folder)
    model = Model.from_pretrained(output / "model", device="cpu")
    assert isinstance(model.tokenizer, FastTokenizer)
    state = model.module.state_dict()
    key = "textual.encoder.encoder.layer.0.attention.self.query.weight"
    assert not torch.equal(state[key], before[key])
    points = model.encode_text(CAPTIONS)
    model.save_pretrained(tmp_path / "copy")
    copy = Model.from_pretrained(tmp_path / "copy", device="cpu")
    assert torch.equal(copy.encode_text(CAPTIONS), points)
    assert torch.equal(copy.encode_text(CAPTIONS[0]), model.encode_text(CAPTIONS[0]))
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "README.md",
    }


@pytest.mark.parametrize("kind", ["t5", "clip_text_model", "roberta"])
def test_a_run_resumes_with_the_same_weights_and_evaluates_with_its_tokenizer(tmp_path: Path, kind: str) -> None:
    folder = tiny_encoder(kind, tmp_path / kind)
    shards = f"evaluation.held_out.shards={tmp_path / 'shards'}"
    sizes = new_sizes(folder)
    settings = [*sizes, "steps=4", "save.every=2", "optim.warmup_steps=1", "data.workers=1"]
    assert run(tmp_path / "whole", *settings) == 0
    assert run(tmp_path / "parts", *settings, "steps=2") == 0
    assert run(tmp_path / "parts", *settings, "resume=anyway", "steps=4") == 0
    whole, parts = (load_model(tmp_path / name).model.state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(whole[key], parts[key]) for key in whole)
    assert shards


def new_sizes(folder: Path) -> list[str]:
    return [str(folder)]


@pytest.mark.parametrize("kind", KINDS)
def test_recomputed_activations_give_the_same_gradients(tmp_path: Path, kind: str) -> None:
    pass
