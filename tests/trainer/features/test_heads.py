"""Heads over cached features: any model, the gradients of the full model, exact resume, and the whole when it is loaded."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import PIL.Image
import pytest
import torch
from safetensors.torch import load_file

from hypergrit_common.errors import UserError
from tests.trainer import tiny_open_clip
from tests.trainer.data.samples import train_files, write_shards
from tests.trainer.features.conftest import World
from tests.trainer.small import NAMES, most_in_rest, small_batch, small_model
from tests.trainer.small_run import overrides, run_command, terminate
from tests.trainer.tiny_transformers import tiny_encoder
from trainer import Model, load_model, train
from trainer.batch import Batch, Stream
from trainer.checkpoints.towers import FrozenModel
from trainer.config import load_config
from trainer.data.config import DataConfig
from trainer.data.features import FeatureBuilder, FeatureStore
from trainer.data.loader import Loader
from trainer.data.order import BlockOrder
from trainer.encoders.cached import CachedImage, CachedText
from trainer.encoders.config import CACHED, ImageConfig, TextConfig
from trainer.encoders.text import StateSource, TokenStates
from trainer.evaluate import main as evaluate
from trainer.models.dual_encoder import DualEncoder
from trainer.text.tokenizer import read_tokenizer

KWARGS = {"width": 32, "hidden": 24, "depth": 1}


def head_model(name: str) -> tuple[DualEncoder, FrozenModel]:
    """A head of the model `name` over a small CLIP, in float64."""
    image = ImageConfig(name=CACHED, size_px=16, kwargs=KWARGS)
    text = TextConfig(name=CACHED, vocab_size=64, context_length=8, kwargs=KWARGS)
    frozen = FrozenModel(small_model("clip", seed=1).double(), projected=False)
    model = small_model(name, image=image, text=text).double()
    for tower in (model.visual, model.textual):
        assert isinstance(tower, CachedImage | CachedText)
        tower.frozen = lambda: frozen
    return model, frozen


def cached(batch: Batch, model: DualEncoder, frozen: FrozenModel) -> Batch:
    """The batch with the features of the frozen model in place of pixels and token ids."""
    source = StateSource() if "parse" in model.needs else None

    def image(pixels: torch.Tensor, with_patches: bool = False) -> torch.Tensor:
        pixels = (pixels - model.pixel_mean) / model.pixel_std
        return frozen.patches(pixels) if with_patches else frozen.image(pixels)

    def text(ids: torch.Tensor, with_states: bool = False) -> torch.Tensor:
        found = frozen.text(ids, source if with_states else None)
        if isinstance(found, TokenStates):
            return torch.cat([found.pooled[:, None], found.initial, found.contextual], dim=1)
        return found

    def rows(name: str, stream: Stream) -> torch.Tensor:
        if stream.side == "image":
            return image(stream.rows, name == "image" and "queries" in model.needs)
        return text(stream.rows, name == "text")

    return batch.with_rows({name: rows(name, stream) for name, stream in batch.streams.items()})


def gradients(model: DualEncoder, batch: Batch) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(batch).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", NAMES)
def test_the_gradients_of_a_head_are_those_of_the_full_model_with_the_same_frozen_tower(name: str) -> None:
    model, frozen = head_model(name)
    batch = small_batch().map(lambda t: t.double() if t.is_floating_point() else t)
    full = gradients(model, batch)
    head = gradients(model, cached(batch, model, frozen))
    assert full.keys() == head.keys()
    assert any(key.startswith("visual.head") for key in full)
    for key, expected in full.items():
        torch.testing.assert_close(head[key], expected, rtol=1e-9, atol=1e-12)
    assert not any(key.startswith(("visual.blocks", "textual.resblocks")) for key in model.state_dict())


@pytest.mark.parametrize("name", most_in_rest("phyclip syntax_meru hyper3"))
def test_any_model_is_trained_on_features(world: World, tmp_path: Path, name: str) -> None:
    assert train.run(world.training(tmp_path / "run", f"model_name={name}", "steps=3")) == 0
    model = load_model(tmp_path / "run", device="cpu")
    assert model.encode_text(["a dog"]).shape == model.encode_image(picture()).shape == (1, 16)


def test_a_large_batch_of_features_needs_no_overlay_for_small_machines(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert train.run(world.training(tmp_path / "run", "model_name=meru", "batch_size=256", "steps=3")) == 0
    assert "small_machine.yaml" not in caplog.text
    assert "is drawn" not in caplog.text
    assert train.run(world.training(tmp_path / "more", "model_name=meru", "batch_size=256", "steps=26")) == 0
    assert "each of the 64 samples is drawn 104 times" in caplog.text


def test_a_head_without_a_hidden_layer_is_the_projection_alone(world: World, tmp_path: Path) -> None:
    others = ("model_name=meru", "model.image.kwargs={depth: 0}", "model.text.kwargs={depth: 0}", "steps=3")
    assert train.run(world.training(tmp_path / "run", *others)) == 0
    names = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert not any(".layers." in name for name in names)
    assert names["visual_proj.weight"].shape == (16, 32)


def test_a_stopped_run_gives_the_weights_of_an_uninterrupted_one(world: World, tmp_path: Path) -> None:
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    others = ("model_name=hycoclip", "data.boxes=all")
    assert run_command(world.training(stopped, *others), at=7, fault=terminate) == 143
    for output in (stopped, whole):
        assert run_command(world.training(output, *others)) == 0
    first, second = (load_file(output / "model" / "model.safetensors") for output in (stopped, whole))
    assert all(torch.equal(first[name], second[name]) for name in second)


@pytest.mark.parametrize("model", most_in_rest("syntax_meru", ("hycoclip", "syntax_meru", "taxonomy", "hyper3")))
def test_the_text_tower_can_be_trained_with_frozen_images(world: World, tmp_path: Path, model: str) -> None:
    merges = world.root / "merges.txt"
    text = ["vocab_size=514", "context_length=8", "width=32", "layers=1", "heads=2"]
    others = [f"model_name={model}", "steps=3", "data.texts=tokens", f"tokenizer={merges}"]
    arguments = [item for item in world.training(tmp_path / "run") if not item.startswith("model.text.")]
    assert train.run([*arguments, *others, *(f"model.text.{item}" for item in text)]) == 0
    names = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert "textual.resblocks.0.ln_1.weight" in names
    assert "visual.head.mean" in names
    assert load_model(tmp_path / "run", device="cpu").encode_text(["a dog"]).shape == (1, 16)


def test_trees_of_features_are_those_of_the_captions(world: World) -> None:
    builder = build(world, frozenset({"parse"}), texts="tokens")
    drawn = builder.order.take(0, 8)
    batch, _ = builder.build(0, drawn)
    rows = builder.index.locate(drawn.samples)
    for ids, owners, caption in zip(
        batch["text"].rows, batch["text"].syntax.word_of_token, rows.values("caption"), strict=True
    ):
        expected = builder.tokenizer.truncate(builder.tokenizer.encode(caption))
        assert ids[: len(expected)].tolist() == expected
        assert (owners[len(expected) :] == -1).all()
        assert owners.max() >= 1  # several words
    assert batch["text"].syntax.word_of_token.shape == batch["text"].rows.shape


@pytest.fixture(scope="module")
def head(world: World) -> Path:
    """A trained head."""
    output = world.root / "head"
    assert train.run(world.training(output, "model_name=hycoclip", "steps=3")) == 0
    return output


def picture(seed: int = 0) -> PIL.Image.Image:
    return PIL.Image.fromarray(np.random.default_rng(seed).integers(0, 256, (20, 30, 3), np.uint8))


def test_the_loaded_head_is_the_whole_model(world: World, head: Path) -> None:
    model, tower = load_model(head, device="cpu"), load_model(world.tower, device="cpu")
    assert "tower" not in {path.name for path in (head / "model").iterdir()}
    visual: Any = model.module.visual
    pixels = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        expected = model.module.lift_image(model.module.visual_proj(visual.head(tower.module.image_states(pixels))))
        torch.testing.assert_close(model.module.encode_image(pixels), expected)
        states = tower.module.textual(tower.tokenizer(["a dog"]))
        expected = model.module.lift_text(model.module.textual_proj(model.module.textual.head(states)))
    torch.testing.assert_close(model.encode_text("a dog"), expected)


def test_a_moved_tower_is_named_and_can_be_given(world: World, head: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(head / "model", moved)
    config = json.loads((moved / "config.json").read_text())
    for part in ("image", "text"):
        config["config"][part]["weights"] = "/nowhere"
    (moved / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"does not exist.*tower=PATH"):
        load_model(moved, device="cpu").encode_text("a dog")
    assert evaluate([str(moved), f"shards={world.shards}", "device=cpu"]) == 2
    downloaded = Model.from_pretrained(moved, device="cpu", tower=world.tower)
    assert downloaded.encode_text("a dog").shape == (1, 16)
    given = load_model(moved, device="cpu", tower=world.tower)
    torch.testing.assert_close(given.encode_image(picture()), load_model(head, device="cpu").encode_image(picture()))
    other = tmp_path / "other"
    small = load_model(world.tower, device="cpu")
    with torch.no_grad():
        small.module.visual_proj.weight.mul_(2)
    small.save_pretrained(other)
    with pytest.raises(UserError, match="has other weights"):
        load_model(moved, device="cpu", tower=other).encode_text("a dog")
    given.save_pretrained(tmp_path / "saved")
    torch.testing.assert_close(
        load_model(tmp_path / "saved", device="cpu").encode_text("a dog"), given.encode_text("a dog")
    )
    with pytest.raises(UserError, match=r"does not exist.*tower=PATH"):
        load_model(moved, device="cpu").save_pretrained(tmp_path / "copy", tower=True)


def test_a_saved_head_can_take_its_tower_with_it(head: Path, tmp_path: Path) -> None:
    model = load_model(head, device="cpu")
    model.save_pretrained(tmp_path / "saved", tower=True)
    shutil.move(tmp_path / "saved", tmp_path / "elsewhere")
    loaded = load_model(tmp_path / "elsewhere", device="cpu")
    torch.testing.assert_close(loaded.encode_image(picture()), model.encode_image(picture()))
    torch.testing.assert_close(loaded.encode_text("a dog"), model.encode_text("a dog"))
    loaded.save_pretrained(tmp_path / "named")
    named = load_model(tmp_path / "named", device="cpu")
    torch.testing.assert_close(named.encode_text("a dog"), model.encode_text("a dog"))


def test_a_copy_of_a_tower_keeps_its_own_tokenizer(world: World, tmp_path: Path) -> None:
    merges = tmp_path / "merges.txt"
    merges.write_text(f"{(world.root / 'merges.txt').read_text().rstrip()}\nd o\ndo g</w>\n")
    size = read_tokenizer(merges, 8).vocab_size
    text = [f"vocab_size={size}", "context_length=8", "width=32", "layers=1", "heads=2"]
    arguments = [item for item in world.training(tmp_path / "run") if not item.startswith("model.text.")]
    others = ["model_name=clip", "steps=3", "data.texts=tokens", f"tokenizer={merges}"]
    assert train.run([*arguments, *others, *(f"model.text.{item}" for item in text)]) == 0
    model = load_model(tmp_path / "run", device="cpu")
    model.save_pretrained(tmp_path / "saved", tower=True)
    loaded = load_model(tmp_path / "saved", device="cpu")
    torch.testing.assert_close(loaded.encode_image(picture()), model.encode_image(picture()))
    torch.testing.assert_close(loaded.encode_text("a dog"), model.encode_text("a dog"))


@pytest.mark.parametrize("name", most_in_rest("syntax_meru", ("clip", "hycoclip", "uncha", "syntax_meru", "hyper3")))
def test_a_head_is_trained_in_bf16(world: World, tmp_path: Path, name: str) -> None:
    assert train.run(world.training(tmp_path / "run", f"model_name={name}", "steps=3", "precision=bf16")) == 0


@pytest.mark.parametrize("kind", most_in_rest("bert", ("bert", "clip_text_model")))  # with and without own padding
def test_a_head_over_an_encoder_of_transformers_is_the_whole_model(world: World, tmp_path: Path, kind: str) -> None:
    encoder, sizes = tiny_encoder(kind, tmp_path / "encoder"), ("vocab_size", "width", "layers", "heads")
    dropped = ("tokenizer=", *(f"model.text.{size}=" for size in sizes))
    text = ["model.text.name=transformers", f"model.text.weights={encoder}"]
    arguments = [
        item for item in overrides(tmp_path / "tower", "model_name=clip", "steps=1") if not item.startswith(dropped)
    ]
    assert train.run([*arguments, *text, f"shards={world.shards}", "optim.warmup_steps=0"]) == 0
    other = World(tmp_path)
    other.tower, other.shards = tmp_path / "tower", world.shards
    assert other.write(other.features) == 0
    assert train.run(other.training(tmp_path / "head", "model_name=meru", "steps=2", "optim.warmup_steps=0")) == 0
    model, tower = load_model(tmp_path / "head", device="cpu"), load_model(other.tower, device="cpu")
    found = model.encode_text(["a dog", "a cat of the box"])
    textual: Any = model.module.textual
    with torch.no_grad():
        states = tower.module.textual(tower.tokenizer(["a dog", "a cat of the box"]))
        torch.testing.assert_close(found, model.module.lift_text(model.module.textual_proj(textual.head(states))))
    assert not any(p.is_inference() for p in textual.frozen().model.parameters())


def test_a_folder_of_open_clip_is_the_tower_of_a_head(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_open_clip.register(tmp_path)
    theirs = tiny_open_clip.tiny("tiny-vit")
    other = World(tmp_path)
    other.tower, other.shards = tiny_open_clip.save(theirs, "tiny-vit", tmp_path, "hub"), world.shards
    assert evaluate([str(other.tower), f"shards={world.shards}", "device=cpu"]) == 0
    assert other.write(other.features, "patches=true") == 2
    assert "patches=true: the patches of images are pooled, but the image tower has none" in capsys.readouterr().err
    assert other.write(other.features, "projected=true") == 0
    rows = (store := FeatureStore(str(other.features), frozenset())).locate(np.arange(store.n_samples))
    with torch.no_grad():
        expected = theirs.encode_text(open_clip.SimpleTokenizer(context_length=12)(rows.values("caption")))
    torch.testing.assert_close(rows.take("text").float(), expected, atol=2e-3, rtol=2e-3)
    assert train.run(other.training(tmp_path / "head", "model_name=meru", "steps=3")) == 0
    head = load_model(tmp_path / "head", device="cpu")
    assert head.encode_image(picture()).shape == (1, 16)
    (row,) = head.encode_text(rows.values("caption")[:1])
    torch.testing.assert_close(row, head.module.encode_text(rows.take("text")[:1].float())[0], atol=2e-3, rtol=2e-3)
    head.save_pretrained(tmp_path / "copy", tower=True)
    shutil.rmtree(other.tower)
    torch.testing.assert_close(Model.from_pretrained(tmp_path / "copy").encode_text(rows.values("caption")[:1])[0], row)


def test_the_stored_states_are_those_that_the_model_names(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = World(tmp_path)
    other.tower, other.shards = world.tower, world.shards
    assert other.write(other.features, "tokens=true", "word_states=attention") == 0
    attention = ("model_name=syntax_meru", "steps=2", "optim.warmup_steps=0", "model.word_states=attention")
    assert train.run(other.training(tmp_path / "run", *attention)) == 0
    assert train.main(other.training(tmp_path / "block", *attention, "model.word_block=1")) == 2
    assert train.main(world.training(tmp_path / "tower_states", *attention)) == 2
    assert "word_states=tower and word_block=0 of tokens, but model.word_states is attention" in capsys.readouterr().err


def test_a_head_over_a_head_is_refused(
    world: World, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = World(tmp_path)
    other.tower, other.shards = head, world.shards
    assert other.write(tmp_path / "out") == 2
    assert "is a head over cached features" in capsys.readouterr().err


def build(world: World, needs: frozenset[str], seed: int = 0, **settings: Any) -> FeatureBuilder:
    store = FeatureStore(str(world.features), needs)
    config = DataConfig(features=str(world.features), seed=seed, **settings)
    order = BlockOrder(store.n_samples, seed, 8)
    tokenizer = read_tokenizer(world.root / "merges.txt", 8)
    return FeatureBuilder(config=config, index=store, order=order, tokenizer=tokenizer, needs=needs)


def test_a_head_with_boxes_as_pairs_learns_from_features_with_boxes_and_without(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixed = World(tmp_path)
    mixed.tower = world.tower
    write_shards(mixed.shards, [20, 20], lambda number: train_files(number, n_boxes=0 if number % 5 else 2))
    assert mixed.write(mixed.features) == 0
    run = mixed.training(tmp_path / "run", "model_name=meru", "model.boxes_as_pairs=true", "steps=5")
    assert train.run(run) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["data/boxes_per_sample"] == 0.2  # an epoch of 40
    for boxes, each in (("random", 1), ("all", 2)):
        builder = build(mixed, frozenset({"boxes", "pairs"}), boxes=boxes, box_order="random")
        fields, _ = builder.build(0, builder.order.take(0, 40))
        rows_with = [row for row, key in enumerate(fields.keys) if int(key[-4:]) % 5 == 0]
        assert fields["box_image"].owner.tolist() == [row for row in rows_with for _ in range(each)]
        assert len(fields["box_image"].rows) == len(fields["box_text"].rows) == 8 * each
    shutil.rmtree(mixed.features)
    write_shards(mixed.shards, [20, 20], lambda number: train_files(number, n_boxes=0))
    assert mixed.write(mixed.features) == 0
    assert train.main(run) == 2
    assert "has no sample with a box, which the model needs" in capsys.readouterr().err


def test_a_batch_depends_on_its_position_alone_and_draws_every_view_and_box(world: World) -> None:
    builder = build(world, frozenset({"boxes"}))
    position = 640
    first, again = (builder.build(position, builder.order.take(position, 8))[0] for _ in range(2))
    assert all(torch.equal(first[name].rows, again[name].rows) for name in ("image", "box_image", "text"))
    part, _ = builder.build(position + 3, builder.order.take(position + 3, 2))
    assert torch.equal(part["image"].rows, first["image"].rows[3:5])
    assert torch.equal(part["box_image"].rows, first["box_image"].rows[3:5])
    at = np.arange(4000)
    assert np.bincount(builder.draw(at, 1, 2)).tolist() == pytest.approx([2000, 2000], abs=150)
    four = builder.draw(at, 2, np.full(4000, 4))
    assert np.bincount(four).tolist() == pytest.approx([1000] * 4, abs=120)
    other = build(world, frozenset({"boxes"}), seed=5)
    assert (other.draw(at, 2, np.full(4000, 4)) != four).mean() == pytest.approx(0.75, abs=0.05)


def test_all_boxes_have_their_owners_and_max_boxes_limits_them(world: World) -> None:
    builder = build(world, frozenset({"boxes"}), boxes="all")
    batch, _ = builder.build(0, builder.order.take(0, 8))
    rows = builder.index.locate(builder.order.take(0, 8).samples)
    n = rows.items()[1]
    assert batch["box_image"].owner.tolist() == np.repeat(np.arange(8), n).tolist()
    assert len(batch["box_image"].rows) == len(batch["box_text"].rows) == n.sum()
    for order in ("first", "random"):
        few = build(world, frozenset({"boxes"}), boxes="all", max_boxes=2, box_order=order)
        found, _ = few.build(0, few.order.take(0, 8))
        assert found["box_image"].owner.tolist() == np.repeat(np.arange(8), np.minimum(n, 2)).tolist()


def test_the_loader_has_the_order_of_all_data_on_several_ranks(world: World) -> None:
    config = DataConfig(features=str(world.features))
    tokenizer = read_tokenizer(world.root / "merges.txt", 8)

    def keys(rank: int, world_size: int, batch: int) -> list[str]:
        loader = Loader(
            config, tokenizer=tokenizer, size_px=16, batch=batch, needs=frozenset(), rank=rank, world_size=world_size
        )
        return list(next(iter(loader)).keys)

    assert keys(0, 2, 4) + keys(1, 2, 4) == keys(0, 1, 8)


def test_features_without_what_the_model_needs_are_named(world: World, tmp_path: Path) -> None:
    assert world.write(tmp_path / "plain") == 0
    with pytest.raises(UserError, match="tokens=true"):
        FeatureStore(str(tmp_path / "plain"), frozenset({"parse"}))
    with pytest.raises(UserError, match=r"one caption .*data\.captions=first"):
        FeatureStore(str(tmp_path / "plain"), frozenset({"captions"}))
    other = build(world, frozenset({"parse"}), texts="tokens")
    other.tokenizer = read_tokenizer(world.root / "merges.txt", 4)
    with pytest.raises(UserError, match=r"the parses of .*context_length .*data\.texts=features"):
        other.build(0, other.order.take(0, 8))
    (tmp_path / "plain" / "_manifests" / "00002.json").unlink()
    with pytest.raises(UserError, match="2 of 3 files"):
        FeatureStore(str(tmp_path / "plain"), frozenset())


def test_the_towers_of_a_job_are_replaced_and_its_loss_stays(world: World, tmp_path: Path) -> None:
    config = load_config(
        [
            "jobs/train/hycoclip.yaml",
            "jobs/train/vit_b.yaml",
            "jobs/train/heads.yaml",
            f"data.features={world.features}",
            f"output={tmp_path / 'run'}",
        ]
    )
    assert config.model.image.name == config.model.text.name == CACHED
    assert config.model.image.kwargs["width"] == 32
    assert config.model.image.kwargs["hidden"] == 512
    assert (config.batch_size, config.model.embed_dim, config.model_name) == (256, 64, "hycoclip")
    with pytest.raises(UserError, match="both set"):
        load_config([f"data.features={world.features}", "shards=x", f"output={tmp_path / 'run'}"])


def test_heads_are_evaluated_side_by_side_with_a_picture_each(
    world: World, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [str(head), str(world.tower)]
    assert evaluate([*models, f"shards={world.shards}", "device=cpu", f"pictures={tmp_path / 'pictures'}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["metric", "head", "tower", "chance"]
    assert any(line.startswith("entailment/box_text_image/order") for line in lines)
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {"head.png", "tower.png"}


def test_a_run_evaluates_its_head_on_pictures(world: World, tmp_path: Path) -> None:
    others = ("model_name=meru", "steps=3", f"evaluation.shards={world.shards}")
    assert train.run(world.training(tmp_path / "run", *others)) == 0
    results = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert (
        evaluate([str(tmp_path / "run"), f"shards={world.shards}", "device=cpu", f"output={tmp_path / 'e.json'}"]) == 0
    )
    again = json.loads((tmp_path / "e.json").read_text())
    assert again == pytest.approx(results, abs=1e-6)
