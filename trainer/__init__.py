"""Training and evaluation of hyperbolic vision-language models.

The names below are the public Python API: later versions add to it and change none of it. They are imported at first use, so that
`import trainer` and `--help` need no torch.
"""

from typing import TYPE_CHECKING

from common.lazy import lazy_exports

if TYPE_CHECKING:
    from trainer.inference import Model, load_model
    from trainer.models.registry import MODELS, build_model

__all__ = ["MODELS", "Model", "build_model", "load_model"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "MODELS": "trainer.models.registry",
        "Model": "trainer.inference",
        "build_model": "trainer.models.registry",
        "load_model": "trainer.inference",
    },
)
