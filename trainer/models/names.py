"""The models by name: what `model_name` means, in a configuration and in a saved model's."""

from trainer.dual_encoder import DualEncoder, ModelConfig
from trainer.models.clip import CLIP
from trainer.models.hycoclip import HyCoCLIP, HyCoCLIPConfig
from trainer.models.hyperbolic import HyperbolicConfig
from trainer.models.meru import MERU
from trainer.models.phyclip import PHyCLIP, PHyCLIPConfig
from trainer.models.poinclip import PoinCLIP, PoinCLIPConfig
from trainer.models.syntax_meru import SyntaxMERU, SyntaxMERUConfig

MODELS: dict[str, tuple[type[DualEncoder], type[ModelConfig]]] = {
    "clip": (CLIP, ModelConfig),
    "meru": (MERU, HyperbolicConfig),
    "hycoclip": (HyCoCLIP, HyCoCLIPConfig),
    "phyclip": (PHyCLIP, PHyCLIPConfig),
    "poinclip": (PoinCLIP, PoinCLIPConfig),
    "syntax_meru": (SyntaxMERU, SyntaxMERUConfig),
}


def build_model(name: str, config: ModelConfig) -> DualEncoder:
    """With weights drawn at random. Raises ValueError for no such name, or for another model's configuration."""
    if name not in MODELS:
        raise ValueError(f"model {name!r} is none of {', '.join(MODELS)}")
    kind, config_kind = MODELS[name]
    if not isinstance(config, config_kind):
        raise ValueError(f"model {name!r} takes a {config_kind.__name__}, not a {type(config).__name__}")
    return kind(config)


def model_name(model: DualEncoder) -> str:
    return next(name for name, (kind, _) in MODELS.items() if type(model) is kind)
