"""What a model can do that it was not trained for word by word: zero-shot classification, retrieval, entailment.

`evaluate` measures it beside chance; the training loop and `python -m trainer.evaluate` call it.
"""

from trainer.evaluation.config import EvaluationConfig
from trainer.evaluation.evaluate import check_places, evaluate

__all__ = ["EvaluationConfig", "check_places", "evaluate"]
