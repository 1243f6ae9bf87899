"""Packages that only jobs with models and the trainer need: those of the extra `models` in pyproject.toml."""

MODEL_PACKAGES = frozenset(
    {"open_clip", "safetensors", "spacy", "thinc", "timm", "tokenizers", "torch", "torchvision", "transformers"}
)
