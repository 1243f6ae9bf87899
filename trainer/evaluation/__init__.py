"""What a model can do that it was not trained for word by word: zero-shot classification, retrieval, entailment.

`Evaluation` measures it beside chance; the training loop and `python -m trainer.evaluate` call it.
"""

from trainer.evaluation.config import EvaluationConfig
from trainer.evaluation.evaluate import Evaluation

__all__ = ["Evaluation", "EvaluationConfig"]
