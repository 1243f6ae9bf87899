"""Train the parser of web texts, and fit the model of what is visible."""

from collections.abc import Sequence
from random import Random
from typing import Any, Final

import spacy
import torch
from spacy.language import Language
from torch.nn.functional import binary_cross_entropy_with_logits

from pipeline.stages.parse import visible
from pipeline.stages.parse.config import ParseConfig
from pipeline.stages.parse.normalise import set_up_tokenizer
from pipeline.stages.parse.parser import CaptionParser
from pipeline.stages.parse.recipe.labels import accepted, agreeing_trees
from pipeline.stages.parse.recipe.trees import example, in_case, rewritten

COPIES: Final = 5
"""Copies of each labelled text."""
CLEAN: Final = 2
"""Copies of clean captions as they are; the others are rewritten."""
EPOCHS: Final = 3
BATCH: Final = 64
RATE: Final = 2e-4
DROPOUT: Final = 0.1


def train_parser(
    student: str, teacher: str, photos: Sequence[dict[str, Any]], texts: Sequence[dict[str, Any]], seed: int = 1
) -> Language:
    """Return the pipeline `student` trained on the trees of `teacher`.

    Args:
        student: package or folder of en_core_web_sm.
        teacher: the same of a larger pipeline.
        photos: labelled clean captions.
        texts: labelled web texts.
        seed: of all that is drawn.
    """
    random = Random(seed)
    spacy.util.fix_random_seed(seed)
    large, nlp = spacy.load(teacher, exclude=["ner"]), spacy.load(student, exclude=["ner", "senter"])
    tokenizer = spacy.load(student, exclude=["ner", "senter"])
    set_up_tokenizer(tokenizer)
    examples = []
    for round in range(COPIES):
        for tree in agreeing_trees(tokenizer, large, photos):
            examples.append(example(nlp, tree if round < CLEAN else rewritten(tree, random)))
        for tree in agreeing_trees(tokenizer, large, texts):
            case = random.choice(("none", "none", "title", "upper", "lower"))
            examples.append(example(nlp, in_case(tree, case, random)))
    optimizer = nlp.resume_training()
    optimizer.learn_rate = RATE
    with nlp.select_pipes(enable=["tok2vec", "tagger", "parser"]):
        for epoch in range(EPOCHS):
            random.shuffle(examples)
            losses: dict[str, float] = {}
            for start in range(0, len(examples), BATCH):
                nlp.update(examples[start : start + BATCH], sgd=optimizer, drop=DROPOUT, losses=losses)
            print(f"epoch {epoch + 1}: {len(examples)} texts, loss of the parser {losses['parser']:.0f}", flush=True)
    return nlp


def judged_phrases(model: str, rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, float]], list[bool]]:
    """Return the features of each noun phrase that the parser finds in labelled texts, and whether it is labelled.

    Optional phrases, and those that a rule removes, are left out.
    """
    parser = CaptionParser(ParseConfig(model=model, min_visible=0))
    features, right = list[dict[str, float]](), list[bool]()
    for row, (parse, scene, phrases) in zip(rows, parser.analyse([row["text"] for row in rows]), strict=True):
        marked = {span for phrase in row["phrases"] for span in accepted(phrase)}
        for chunk, phrase in zip(parse.chunks, phrases, strict=True):
            span = (chunk.start, chunk.end)
            if chunk.removed is None and list(span) not in row["optional"]:
                features.append(visible.features(scene, phrase))
                right.append(span in marked)
    return features, right


def fit(features: Sequence[dict[str, float]], right: Sequence[bool], strength: float = 1.0) -> dict[str, float]:
    """Return the weights of a logistic regression with the prior 1 / (2 strength) |w|^2, without those that change nothing."""
    names = sorted({name for row in features for name, value in row.items() if value})
    places = {name: number for number, name in enumerate(names)}
    inputs = torch.zeros(len(features), len(names), dtype=torch.float64)
    for number, row in enumerate(features):
        for name in row.keys() & places.keys():
            inputs[number, places[name]] = float(row[name])
    goal = torch.tensor(right, dtype=torch.float64)
    weights = torch.zeros(len(names), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=500, tolerance_grad=1e-6, line_search_fn="strong_wolfe")

    def loss() -> float:
        optimizer.zero_grad()
        value = binary_cross_entropy_with_logits(inputs @ weights, goal, reduction="sum")
        value = value + weights.square().sum() / (2 * strength)
        value.backward()
        return float(value)

    optimizer.step(loss)
    return {name: round(w, 3) for name, w in zip(names, weights.tolist(), strict=True) if abs(w) > 0.02}
