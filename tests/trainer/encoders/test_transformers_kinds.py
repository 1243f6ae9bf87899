"""Encoders of transformers that differ from BERT: no attention mask, unused parameters, decoders, sizes of their own."""

from typing import Any

import pytest
import torch
import transformers

from trainer.encoders.config import TextConfig
from trainer.encoders.transformers_text import TransformersText, context_limit, settings_of

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
VALUES: dict[str, dict[str, Any]] = {
    "fnet": {**SIZES, "vocab_size": 50, "hidden_dropout_prob": 0.0, "max_position_embeddings": 24},
    "longformer": {**SIZES, **NO_DROPOUT, "vocab_size": 50, "max_position_embeddings": 40, "attention_window": [4, 4]},
    "opt": {
        "vocab_size": 50,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "ffn_dim": 48,
        "word_embed_proj_dim": 32,
        "max_position_embeddings": 24,
        "dropout": 0.0,
    },
    "siglip_text_model": {**SIZES, "vocab_size": 50, "max_position_embeddings": 16},
    "xlnet": {"vocab_size": 50, "d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 48, "dropout": 0.0},
}


def tower(kind: str, pooling: str = "mean") -> TransformersText:
    torch.manual_seed(3)
    values = {"model_type": kind, "pad_token_id": 1, **VALUES[kind]}
    config: Any = {"pooling": pooling, "kwargs": values, **settings_of(values)}
    return TransformersText(TextConfig(name="transformers", context_length=12, pad_id=1, **config)).eval()


def texts() -> torch.Tensor:
    """Two texts [2 12] of 5 and 12 tokens."""
    ids = torch.randint(4, 50, (2, 12), generator=torch.Generator().manual_seed(0))
    ids[0, 5:] = 1
    return ids


@pytest.mark.parametrize("kind", VALUES)
def test_a_feature_does_not_depend_on_the_other_texts_and_every_trained_parameter_has_a_gradient(kind: str) -> None:
    model = tower(kind)
    together, alone = model(texts()), model(texts()[:1, :5])
    torch.testing.assert_close(together[:1], alone)
    assert (together[0] - together[1]).abs().max() > 1e-3
    model.train()(texts()).square().sum().backward()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert trained
    assert all(parameter.grad is not None for parameter in trained)


def test_encoders_without_attention_mask_pad_all_texts_to_the_context() -> None:
    assert tower("fnet").pads_to_context
    assert not tower("longformer").pads_to_context


def test_parameters_without_effect_are_frozen() -> None:
    frozen = {name for name, parameter in tower("longformer").named_parameters() if not parameter.requires_grad}
    assert frozen
    assert all("_global." in name for name in frozen)
    assert all(parameter.requires_grad for parameter in tower("opt").parameters())


def test_siglip_features_are_those_of_transformers() -> None:
    model = tower("siglip_text_model", "pooler")
    config = transformers.SiglipTextConfig(**VALUES["siglip_text_model"])
    network: Any = transformers.SiglipTextModel(config).eval()
    network.load_state_dict(model.encoder.state_dict())
    ids = texts()[1:]
    torch.testing.assert_close(model(ids), network(ids).pooler_output)


def test_an_encoder_without_a_table_of_positions_has_no_limit() -> None:
    assert context_limit({"model_type": "xlnet", **VALUES["xlnet"]}) is None


@pytest.mark.parametrize(
    "wrong", [{"hidden_act": "evil"}, {"intermediate_size": -1}, {"chunk_size_feed_forward": 4}], ids=str
)
def test_settings_with_which_no_network_can_be_built_are_value_errors(wrong: dict[str, Any]) -> None:
    values = {"model_type": "bert", **SIZES, "vocab_size": 50, "max_position_embeddings": 24, **wrong}
    with pytest.raises(ValueError, match=r"cannot build 'bert'|cannot encode a text"):
        TransformersText(
            TextConfig(name="transformers", context_length=12, pad_id=0, kwargs=values, **settings_of(values))  # type: ignore[arg-type]
        )
