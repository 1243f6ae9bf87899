"""The language tower: BERT of transformers, under the released key names."""

from torch import Tensor, nn
from transformers import BertConfig, BertModel

from pipeline.ground.glip.config import TextConfig


def bert_config(config: TextConfig) -> BertConfig:
    """Convert a text configuration to one of transformers."""
    return BertConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.max_positions,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.dropout,
    )


class BertBody(nn.Module):
    """BERT without its pooler."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.model = BertModel(bert_config(config), add_pooling_layer=False)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        # A 4-D mask: for a 2-D mask, transformers checks on the CPU for zeros, which synchronizes with the GPU.
        return self.model(input_ids=ids, attention_mask=mask[:, None, None].bool()).last_hidden_state


class LanguageBackbone(nn.Module):
    """Hidden states [b, t, d] of word pieces. Padding has hidden states too, but no position attends to it."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.body = BertBody(config)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.body(ids, mask)
