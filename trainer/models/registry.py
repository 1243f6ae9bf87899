"""Registry of the models by name. It imports torch only when the class of a model is used."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import get_annotations
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from hypergrit_common.config import from_plain, without_removed
from hypergrit_common.errors import UserError
from hypergrit_common.lazy import is_plugin, load_plugin
from hypergrit_common.removed import REMOVED_FROM_TRAIN
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
    """Settings class and location of a model. The property `model` imports the model's class, and with it torch.

    Attributes:
        config: class of the settings.
        location: MODULE:CLASS of the model.
        printed_name: name in tables; by default that of the class.
        is_experimental: there are no numbers of its authors' code to compare with.
    """

    config: type[ModelConfig]
    location: str
    printed_name: str = ""
    is_experimental: bool = False

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
    "clip": ModelEntry(ModelConfig, "trainer.models.clip:CLIP"),
    "meru": ModelEntry(HyperbolicConfig, "trainer.models.meru:MERU"),
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
    """Add the class `module:Class` of the user under this name, if it is one.

    The annotation `config` of the class, or of its nearest base class with one, has the settings; without one, they are
    those of `ModelConfig`.

    Callers pass only names that the user gives, never those in a file of a run: the module is imported.

    Args:
        name: `module:Class`; any other name, or one that is known, has no effect.

    Raises:
        UserError: the class cannot be imported, is no `DualEncoder`, or lacks methods; its annotations name what its
            module lacks, or settings that are no subclass of those of a base class.
    """
    if not is_plugin(name) or name in ENTRIES:
        return
    from trainer.models.dual_encoder import DualEncoder

    configs: dict[type, type[ModelConfig]] = {}  # of the class and its bases, in the order of the MRO
    for kind in load_plugin(name, DualEncoder, "model_name").__mro__:
        if "config" in vars(kind).get("__annotations__", {}):
            try:
                found = get_annotations(kind, eval_str=True)["config"]
            except NameError as error:
                reason = f"the annotations of {kind.__name__} cannot be read: {error}"
                raise UserError(f"model_name={name}: {reason}") from error
            configs[kind] = found if isinstance(found, type) else ModelConfig
    configs[DualEncoder] = ModelConfig
    config = next(iter(configs.values()))
    for kind, needed in configs.items():
        if not issubclass(config, needed):
            raise UserError(
                f"model_name={name}: its settings are {config.__name__}, which lacks those of {kind.__name__}; let "
                f"{config.__name__} be a subclass of {needed.__name__}"
            )
    ENTRIES[name] = ModelEntry(config, name, is_experimental=True)


DEFAULT: Final = "hycoclip"
"""Model that is trained if `model_name` is not given."""


def build_model(name: str, config: ModelConfig | None = None) -> "DualEncoder":
    """Build a model with random weights.

    Args:
        name: a key of `MODELS`, or `module:Class` for a class of your own, whose module is imported.
        config: settings of the class that the entry of the model names; None: its defaults.

    Returns:
        The model, in training mode.

    Raises:
        ValueError: the name is unknown, or `config` belongs to another model.
        UserError: the class of `module:Class` cannot be imported, is no `DualEncoder`, or lacks methods.

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


def parse_config(name: str, values: dict[str, Any], source: Path, trust: Sequence[str] = ()) -> ModelConfig:
    """Build the configuration of a model from plain values.

    Args:
        name: a key of `MODELS`, or the class of the user that a file names.
        values: a dictionary written by `dataclasses.asdict`, also of an earlier version.
        source: the file or folder of the values, for messages.
        trust: classes that a file may name: those of the key `trust`.

    Returns:
        The configuration.

    Raises:
        ValueError: an unknown model, key or value, or a class that is not trusted; the message names `source`.
        UserError: the class cannot be imported, as in `use_model`.
    """
    if is_plugin(name):
        if name not in ([trust] if isinstance(trust, str) else trust):
            raise ValueError(
                f"{source} is a model of the class {name}, whose code is loaded only if you say so; if you trust it, "
                f'give trust=["{name}"]'
            )
        use_model(name)
    if name not in MODELS:
        raise ValueError(f"{source}: unknown model {name!r}; this version has {', '.join(MODELS)}")
    try:
        current = without_removed({"model": values}, REMOVED_FROM_TRAIN, f"config of {name}").get("model", {})
        return cast(ModelConfig, from_plain(MODELS[name].config, current, f"config of {name}"))
    except UserError as error:
        raise ValueError(f"{source}: {error}") from error


def model_name(model: "DualEncoder") -> str:
    """Return the name under which the class of a model is registered.

    Args:
        model: an instance of a class of `MODELS`, not of a subclass.

    Returns:
        The key of `MODELS`.

    Raises:
        ValueError: the class is not registered.
    """
    location = f"{type(model).__module__}:{type(model).__name__}"
    for name, entry in MODELS.items():
        if entry.location == location or (is_plugin(name) and entry.model is type(model)):  # imported elsewhere
            return name
    raise ValueError(f"class {location} is not registered; add it to trainer.models.registry.MODELS")
