"""Training and evaluation of hyperbolic vision-language models.

The exported names are the public Python API: later versions may add names, but do not change the existing ones. Each
name is imported at its first use, so `import trainer` and `--help` do not import torch.
"""

from typing import TYPE_CHECKING

from hypergrit_common.lazy import lazy_exports

if TYPE_CHECKING:
    from trainer.inference.model import Model, load_model
    from trainer.models.registry import MODELS, build_model

__all__ = ["MODELS", "Model", "build_model", "load_model"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "MODELS": "trainer.models.registry",
        "Model": "trainer.inference.model",
        "build_model": "trainer.models.registry",
        "load_model": "trainer.inference.model",
    },
)
