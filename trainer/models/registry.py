"""Registry of the models by name. It imports torch only when the class of a model is used."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hypergrit_common.lazy import is_plugin, load_plugin
from trainer.models.config import (
    ARGENTConfig,
    ATMGConfig,
    EuCLIPConfig,
    HyCoCLIPConfig,
    Hyper3Config,
    HyperbolicConfig,
    ModelConfig,
    PHyCLIPConfig,
    PoinCLIPConfig,
    SyntaxMERUConfig,
    TaxonomyConfig,
    UNCHAConfig,
)

if TYPE_CHECKING:
    from trainer.models.dual_encoder import DualEncoder


@dataclass(frozen=True)
class ModelEntry:
    """Settings class and location of a model. The property `model` imports the model's class, and with it torch."""

    config: type[ModelConfig]
    location: str  # MODULE:CLASS
    printed_name: str = ""  # in tables; by default that of the class
    has_paired_boxes: bool = False  # its papers also train it with boxes as additional pairs
    is_experimental: bool = False  # there are no numbers of its authors' code to compare with

    @property
    def title(self) -> str:
        """The name of the model in tables."""
        return self.printed_name or self.location.rpartition(":")[2]

    @property
    def model(self) -> "type[DualEncoder]":
        """The model's class."""
        module, _, name = self.location.partition(":")
        found: type[DualEncoder] = getattr(import_module(module), name)
        return found


ENTRIES: Final[dict[str, ModelEntry]] = {
    "clip": ModelEntry(ModelConfig, "trainer.models.clip:CLIP", has_paired_boxes=True),
    "meru": ModelEntry(HyperbolicConfig, "trainer.models.meru:MERU", has_paired_boxes=True),
    "hycoclip": ModelEntry(HyCoCLIPConfig, "trainer.models.hycoclip:HyCoCLIP"),
    "phyclip": ModelEntry(PHyCLIPConfig, "trainer.models.phyclip:PHyCLIP"),
    "poinclip": ModelEntry(PoinCLIPConfig, "trainer.models.poinclip:PoinCLIP", is_experimental=True),
    "syntax_meru": ModelEntry(
        SyntaxMERUConfig, "trainer.models.syntax_meru:SyntaxMERU", "Syntax-MERU", is_experimental=True
    ),
    "uncha": ModelEntry(UNCHAConfig, "trainer.models.uncha:UNCHA"),
    "argent": ModelEntry(ARGENTConfig, "trainer.models.argent:ARGENT", is_experimental=True),
    "hyper3": ModelEntry(Hyper3Config, "trainer.models.hyper3:Hyper3CLIP", "Hyper3-CLIP", is_experimental=True),
    "atmg": ModelEntry(ATMGConfig, "trainer.models.atmg:ATMG", is_experimental=True),
    "euclip": ModelEntry(EuCLIPConfig, "trainer.models.euclip:EuCLIP", is_experimental=True),
    "taxonomy": ModelEntry(TaxonomyConfig, "trainer.models.taxonomy:Taxonomy", is_experimental=True),
}
"""The models, in the order of tables. No other module lists them."""

MODELS: Final[Mapping[str, ModelEntry]] = MappingProxyType(ENTRIES)
"""Entry of each model by name, as in the setting `model_name`."""


def use_model(name: str) -> None:
    """Add the class `module:Class` of the user under this name, if it is one; its annotation `config` has its settings.

    Callers pass only names that the user gives, never those in a file of a run. Raises UserError.
    """
    if not is_plugin(name) or name in ENTRIES:
        return
    from trainer.models.dual_encoder import DualEncoder

    kinds = (vars(kind) for kind in load_plugin(name, DualEncoder, "model_name").__mro__)
    found = next(kind["__annotations__"]["config"] for kind in kinds if "config" in kind.get("__annotations__", {}))
    config = found if isinstance(found, type) else ModelConfig
    ENTRIES[name] = ModelEntry(config, name, is_experimental=True)


DEFAULT: Final = "hycoclip"
"""Model that is trained if `model_name` is not given."""


def build_model(name: str, config: ModelConfig | None = None) -> "DualEncoder":
    """Build the model `name` with random weights; `config` defaults to the paper's settings.

    Raises ValueError if the name is unknown or `config` belongs to another model.

    >>> from trainer import MODELS, build_model
    >>> model = build_model("meru", MODELS["meru"].config(embed_dim=64, curv_init=0.5))
    >>> round(float(model.curv.exp()), 3), model.config.min_radius
    (0.5, 0.1)
    """
    use_model(name)
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; choose one of {', '.join(MODELS)}")
    entry = MODELS[name]
    config = entry.config() if config is None else config
    if not isinstance(config, entry.config):
        raise ValueError(f"model {name!r} takes a {entry.config.__name__}, not a {type(config).__name__}")
    return entry.model(config)


def model_name(model: "DualEncoder") -> str:
    """Return the name under which the class of `model` is registered.

    Raises ValueError if the class is not registered.
    """
    location = f"{type(model).__module__}:{type(model).__name__}"
    for name, entry in MODELS.items():
        if entry.location == location:
            return name
    raise ValueError(f"class {location} is not registered; add it to trainer.models.registry.MODELS")
