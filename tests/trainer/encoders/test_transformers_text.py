"""Text towers of transformers: their features equal those of the library, and folders that cannot be used are errors."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from hypergrit_common.errors import UserError
from tests.trainer.small_run import SMALL
from tests.trainer.tiny_transformers import VARIED, as_pickle, edit_config, tiny_config, tiny_encoder, tiny_tokenizer
from trainer.config import TrainConfig, load_config
from trainer.encoders.text import StateSource, TokenStates
from trainer.encoders.transformers_text import pretrained_state
from trainer.training.build import build_tokenizer, new_model

TEXTS = ["cat", "the dog of a box: 12", "cats"]
BASE = [item for item in SMALL if not item.startswith("model.text")]


def tower_config(folder: Path | str | None, *others: str, key: str = "model.text.weights") -> TrainConfig:
    source = [] if folder is None else [f"{key}={folder}"]
    return load_config([*BASE, "output=out", "shards=in", "model.text.name=transformers", *source, *others])


def build_both(folder: Path, *others: str) -> None:
    config = tower_config(folder, *others)
    build_tokenizer(config)
    new_model(config)


def reference(kind: str, folder: Path) -> Any:
    source: Any = transformers.T5EncoderModel if kind == "t5" else transformers.AutoModel
    return source.from_pretrained(folder).eval()


def encoded(folder: Path) -> Any:
    batch: Any = transformers.AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    batch.pop("token_type_ids", None)
    return batch


@pytest.mark.parametrize("kind", VARIED)
def test_features_of_every_kind_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    folder = tiny_encoder(kind, tmp_path)
    batch = encoded(folder)
    output = reference(kind, folder)(**batch)
    states, mask = output.last_hidden_state, batch.attention_mask
    lengths = mask.sum(1)
    expected: dict[str, Tensor] = {
        "cls": states[:, 0],
        "mean": torch.stack([row[:n].mean(0) for row, n in zip(states, lengths, strict=True)]),
        "last": torch.stack([row[n - 1] for row, n in zip(states, lengths, strict=True)]),
    }
    if getattr(output, "pooler_output", None) is not None:
        expected["pooler"] = output.pooler_output
    for pooling, features in expected.items():
        config = tower_config(folder, f"model.text.pooling={pooling}")
        model = new_model(config).eval()
        ids = build_tokenizer(config)(TEXTS)
        torch.testing.assert_close(model.textual(ids), features, msg=pooling)
        model.textual(ids).square().sum().backward()
        assert all(parameter.grad is not None for parameter in model.textual.parameters())  # as DDP needs


@pytest.mark.parametrize("kind", VARIED)
@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
def test_padding_does_not_change_features(tmp_path: Path, kind: str, pooling: str) -> None:
    config = tower_config(tiny_encoder(kind, tmp_path), f"model.text.pooling={pooling}")
    model, tokenizer = new_model(config).eval(), build_tokenizer(config)
    together = model.textual(tokenizer(TEXTS))
    alone = torch.cat([model.textual(tokenizer(text)) for text in TEXTS])
    torch.testing.assert_close(together, alone)
    if (kind, pooling) != ("clip_text_model", "cls"):  # its attention is causal
        assert not torch.allclose(together[0], together[1], atol=1e-3)


@pytest.mark.parametrize("kind", VARIED)
def test_a_batch_without_texts_has_no_features_but_gradients(tmp_path: Path, kind: str) -> None:
    model = new_model(tower_config(tiny_encoder(kind, tmp_path)))
    features = model.textual(torch.zeros(0, 0, dtype=torch.int64))  # a rank without boxes
    assert features.shape == (0, 32)
    features.sum().backward()
    assert all(parameter.grad is not None for parameter in model.textual.parameters())


def test_the_encoder_of_a_whole_clip_model_is_its_text_part(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer("clip_text_model", tmp_path)
    text = tiny_config("clip_text_model", tokenizer).to_dict()
    vision = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.CLIPConfig(text_config=text, vision_config={**vision, "image_size": 16, "patch_size": 8})
    whole: Any = transformers.CLIPModel(config).eval()
    whole.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    ids = build_tokenizer(tower_config(tmp_path))(TEXTS)
    model = new_model(tower_config(tmp_path, "model.text.pooling=pooler")).eval()
    batch = encoded(tmp_path)
    torch.testing.assert_close(model.textual(ids), whole.text_model(**batch).pooler_output)


def test_words_have_the_embedding_and_the_final_state_of_their_tokens(tmp_path: Path) -> None:
    folder = tiny_encoder("bert", tmp_path)
    config = tower_config(folder)
    model, batch = new_model(config).eval(), encoded(folder)
    states = model.textual(build_tokenizer(config)(TEXTS), StateSource())
    output = reference("bert", folder)(**batch, output_hidden_states=True)
    assert isinstance(states, TokenStates)
    torch.testing.assert_close(states.initial, output.hidden_states[0])
    torch.testing.assert_close(states.contextual, output.last_hidden_state)


def test_a_folder_without_weights_gives_an_encoder_with_random_weights(tmp_path: Path) -> None:
    folder = tiny_encoder("bert", tmp_path)
    trained = new_model(tower_config(folder)).state_dict()
    (folder / "model.safetensors").unlink()
    config = tower_config(folder, "model.text.kwargs.num_hidden_layers=1", key="tokenizer")
    model = new_model(config)
    assert (config.model.text.layers, len(model.textual.list_blocks() or [])) == (1, 1)
    name = "textual.encoder.embeddings.word_embeddings.weight"
    assert model.state_dict()[name].shape == trained[name].shape
    assert not torch.equal(model.state_dict()[name], trained[name])


def test_dropout_of_the_file_can_be_replaced_and_a_frozen_tower_has_none(tmp_path: Path) -> None:
    folder = tiny_encoder("bert", tmp_path)
    dropout = "model.text.kwargs.hidden_dropout_prob=0.5"
    for frozen in (False, True):
        model = new_model(tower_config(folder, dropout, f"model.text.frozen={frozen}")).train()
        ids = torch.tensor([[1, 5, 6, 2]])
        assert torch.equal(model.textual(ids), model.textual(ids)) is frozen
        assert all(parameter.requires_grad is not frozen for parameter in model.textual.parameters())


@pytest.fixture(scope="module")
def distilbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny encoder."""
    return tiny_encoder("distilbert", tmp_path_factory.mktemp("distilbert"))


@pytest.mark.parametrize(
    ("others", "message"),
    [
        (["model.text.pooling=pooler"], r"text\.pooling is pooler, but DistilBertModel has none; set model\.text\.pooling"),
        (["model.text.pooling=max"], r"model\.text\.pooling"),
        (["model.text.context_length=25"], r"context_length is 25, but the encoder has 24 positions"),
        (["model.text.context_length=2"], "2 special tokens, which fill a context of 2"),
        (["model.text.width=16"], r"sizes differ from those in kwargs; set model\.text\.width=32"),
        (["model.text.kwargs.model_type=vit"], "no text encoder of model_type 'vit'|sizes"),
        (["model.text.kwargs.auto_map={AutoModel: code.Model}"], r"kwargs: auto_map=.*is not allowed"),
        (["model.text.kwargs.attn_implementation=someone/kernel"], "not allowed"),
        (["model.text.kwargs.model_type=grounding-dino", "model.text.kwargs.backbone=a/b"], "backbone='a/b' is not allowed"),
        (["model.text.kwargs.n_layers=3"], r"model\.text\.weights: .*weights are missing, such as transformer\.layer\.2"),
        (["model.text.stretch_after=4"], "stretch_after is for other towers"),
        (["tokenizer=openai"], "openai is no folder"),
        (["model_name=syntax_meru", "model.word_states=block"], "word_states=tower only"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_errors(distilbert: Path, others: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        build_both(distilbert, *others)
    assert "\n" not in str(error.value)


def test_pickled_weights_are_refused_with_the_way_to_convert_them(tmp_path: Path) -> None:
    folder = tiny_encoder("bert", tmp_path)
    as_pickle(folder)
    with pytest.raises(UserError, match=r"only as pytorch_model\.bin, a pickle.*save_pretrained\(FOLDER\)"):
        new_model(tower_config(folder))


def test_a_folder_with_an_adapter_is_refused_when_its_weights_are_read(tmp_path: Path) -> None:
    folder = tiny_encoder("bert", tmp_path)
    config = new_model(tower_config(folder)).config.text
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "someone/else"}')
    with pytest.raises(UserError, match=r"adapter_config\.json makes transformers load a further model"):
        pretrained_state(config)


def test_a_folder_with_code_of_its_own_does_not_run_it(tmp_path: Path) -> None:
    folder = tiny_encoder("bert", tmp_path)
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Model: pass\n")
    edit_config(folder, auto_map={"AutoModel": "code.Model", "AutoConfig": "code.Model"})
    new_model(tower_config(folder))
    assert not (tmp_path / "ran").exists()


def test_a_folder_whose_settings_select_code_is_refused_by_file_and_key(tmp_path: Path) -> None:
    folder = tiny_encoder("bert", tmp_path)
    edit_config(folder, attn_implementation="sdpa", quantization_config=None)
    new_model(tower_config(folder))
    edit_config(folder, quantization_config={"quant_method": "hqq"})
    with pytest.raises(UserError, match=r"config\.json: quantization_config=.*hqq.*is not allowed"):
        new_model(tower_config(folder))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("folder", "none is no folder; give one with config.json"),
        ("key", r"model\.text\.name=transformers needs model\.text\.weights=FOLDER"),
        ("config", r"config\.json"),
        ("tokenizer", "has no tokenizer that transformers can read|no tokens"),
        ("weights", r"model\.text\.weights: .*has no model\.safetensors"),
        ("damaged", r"model\.text\.weights: "),
    ],
)
def test_folders_that_cannot_be_used_are_errors(tmp_path: Path, broken: str, message: str) -> None:
    folder: Path | None = tiny_encoder("bert", tmp_path)
    match broken:
        case "folder":
            folder = tmp_path / "none"
        case "key":
            folder = None
        case "config":
            (tmp_path / "config.json").unlink()
        case "tokenizer":
            (tmp_path / "tokenizer.json").write_text("{}")
        case "weights":
            (tmp_path / "model.safetensors").unlink()
        case "damaged":
            (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(UserError, match=message):
        new_model(tower_config(folder))


def test_the_settings_of_the_file_are_part_of_the_configuration(tmp_path: Path) -> None:
    folder = tiny_encoder("bert", tmp_path)
    text = tower_config(folder).model.text
    assert text.kwargs["model_type"] == "bert"
    assert json.loads((folder / "config.json").read_text()).items() >= text.kwargs.items()
    assert (text.width, text.layers, text.heads, text.context_length) == (32, 2, 2, 24)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "../model.safetensors", "/etc/model.safetensors"])
def test_an_index_may_name_safetensors_files_of_its_folder_only(tmp_path: Path, name: str) -> None:
    folder = tiny_encoder("bert", tmp_path)
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"embeddings.word_embeddings.weight": name}}))
    with pytest.raises(
        UserError, match=r"names the file .*; weights are read from safetensors files of the same folder"
    ):
        build_both(folder)
