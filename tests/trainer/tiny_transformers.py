"""Tiny text encoders of transformers with their tokenizers, in folders that transformers saves."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests.pipeline.clip_tokenizer import small_clip_tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789:,."
WORDS = ("cat", "box", "of", "the", "dog", "ca", "a")
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
KINDS = ("bert", "roberta", "t5", "clip_text_model", "distilbert", "modernbert", "mpnet", "xlm-roberta")
VARIED = tuple(
    kind if kind in ("bert", "clip_text_model") else pytest.param(kind, marks=pytest.mark.rest) for kind in KINDS
)
"""The kinds, most of them with the marker `rest`."""


def word_pieces(cls: str, sep: str, pad: str, unk: str) -> Tokenizer:
    """A tokenizer of words and letters, with `cls` before and `sep` after each text; `cls` may be empty."""
    names = [item for item in (pad, cls, sep, unk, "[MASK]") if item]
    pieces = [*names, *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    vocab = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token=unk))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    marks = [(item, vocab[item]) for item in dict.fromkeys((cls, sep)) if item]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{cls} $A {sep}".strip(), special_tokens=marks)
    return tokenizer


def tiny_tokenizer(kind: str, folder: Path) -> Any:
    """The tokenizer of a tiny encoder. CLIP's pads with its end of text."""
    if kind == "clip_text_model":
        folder.mkdir(parents=True, exist_ok=True)
        return small_clip_tokenizer(folder)
    cls, sep, pad, unk = ("", "</s>", "<pad>", "<unk>") if kind == "t5" else ("[CLS]", "[SEP]", "[PAD]", "[UNK]")
    names = {"pad_token": pad, "unk_token": unk, ("eos_token" if kind == "t5" else "sep_token"): sep}
    return PreTrainedTokenizerFast(tokenizer_object=word_pieces(cls, sep, pad, unk), **names)


def tiny_config(kind: str, tokenizer: Any, **others: Any) -> Any:
    """The configuration of a tiny encoder without dropout."""
    ids = {"vocab_size": len(tokenizer) + 3, "pad_token_id": tokenizer.pad_token_id}
    match kind:
        case "t5":
            sizes = {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0}
        case "distilbert":
            sizes = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48, "max_position_embeddings": 24}
            sizes |= {"dropout": 0.0, "attention_dropout": 0.0}
        case "clip_text_model":
            sizes = {**SIZES, "max_position_embeddings": 24}
            ids |= {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
        case "modernbert":
            sizes = {**SIZES, "max_position_embeddings": 24, "embedding_dropout": 0.0, "mlp_dropout": 0.0}
            marks = ("bos", "eos", "cls", "sep")
            ids |= {f"{name}_token_id": 1 for name in marks}
        case _:
            sizes = {**SIZES, "max_position_embeddings": 24}
            sizes |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return transformers.AutoConfig.for_model(kind, **ids, **sizes, **others)


def tiny_encoder(kind: str, folder: Path, **others: Any) -> Path:
    """Write a tiny encoder with random weights and its tokenizer; return the folder."""
    tokenizer = tiny_tokenizer(kind, folder)
    torch.manual_seed(5)
    config = tiny_config(kind, tokenizer, **others)
    network = transformers.T5EncoderModel(config) if kind == "t5" else transformers.AutoModel.from_config(config)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def as_pickle(folder: Path) -> None:
    """Replace the safetensors file of a folder by a pickle."""
    network = transformers.AutoModel.from_pretrained(folder)
    torch.save(network.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def edit_config(folder: Path, **values: Any) -> None:
    """Change keys of a config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
