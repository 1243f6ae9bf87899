"""Questions with several answers, on invented files."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from tests.trainer.evaluation.tasks.fake_embedder import FakeEmbedder, constant, random_vector
from trainer.evaluation.task import ImageSource, MissingFilesError, TaskOptions
from trainer.evaluation.tasks.vqa import SETS, evaluate

Write = Callable[..., Path]


def write_set(write: Write, name: str, n: int, n_options: int = 4) -> None:
    """n questions whose right answer is the name of the image; it is at another place in each."""
    entries = []
    for number in range(n):
        options = [f"wrong {number} {place}" for place in range(n_options)]
        options[number % n_options] = f"{number}.jpg"
        entries.append(
            {"image": f"{number}.jpg", "question": "Which?", "options": options, "answer": number % n_options}
        )
        write(f"vqa/{name}/images/{number}.jpg")
    write(f"vqa/{name}/questions.json", entries)


def by_name(item: object) -> Tensor:
    """Images and right answers share a vector."""
    return random_vector(item.path.name if isinstance(item, ImageSource) else str(item).removeprefix("Which? "))


def test_a_model_that_knows_the_answers_is_right_in_all_sets(tmp_path: Path, write: Write) -> None:
    for name in SETS:
        write_set(write, name, 5, n_options=3 if name == "ai2d" else 4)
    result = evaluate(FakeEmbedder(text=by_name, image=by_name), tmp_path, TaskOptions())
    assert result.metrics == {f"{name}/accuracy": 1.0 for name in SETS}
    assert result.chance["ai2d/accuracy"] == pytest.approx(1 / 3)
    assert result.chance["aokvqa/accuracy"] == 0.25
    assert (result.n_used, result.skipped, len(result.checksums)) == (30, {}, 6)


def test_sets_with_several_numbers_of_options_are_scored_question_by_question(tmp_path: Path, write: Write) -> None:
    entries = [
        {"image": f"{i}.jpg", "question": "Q", "options": [f"{i} {k}" for k in range(2 + i % 3)], "answer": i % 2}
        for i in range(60)
    ]
    write("vqa/scienceqa/questions.json", entries)
    for i in range(60):
        write(f"vqa/scienceqa/images/{i}.jpg")
    embedder = FakeEmbedder()
    result = evaluate(embedder, tmp_path, TaskOptions())
    right = 0
    for entry in entries:
        image = random_vector(str(ImageSource(path=tmp_path / "vqa/scienceqa/images" / str(entry["image"]))))
        answers = [random_vector(f"Q {option}") for option in entry["options"]]  # type: ignore[attr-defined]
        cosines = [torch.cosine_similarity(image, answer, dim=0).item() for answer in answers]
        right += cosines.index(max(cosines)) == entry["answer"]
    assert result.metrics["scienceqa/accuracy"] == pytest.approx(right / 60)
    assert set(result.details["missing"]) == set(SETS) - {"scienceqa"}  # type: ignore[call-overload]


def test_constant_embeddings_are_always_wrong(tmp_path: Path, write: Write) -> None:
    write_set(write, "mmstar", 8)
    result = evaluate(FakeEmbedder(text=constant, image=constant), tmp_path, TaskOptions())
    assert result.metrics == {"mmstar/accuracy": 0.0}


def test_an_answer_that_is_no_option_and_missing_files_are_named(tmp_path: Path, write: Write) -> None:
    with pytest.raises(MissingFilesError, match=r"expected vqa/SET/questions\.json for aokvqa, mmstar"):
        evaluate(FakeEmbedder(), tmp_path, TaskOptions())
    write("vqa/ai2d/questions.json", [{"image": "a.jpg", "question": "Q", "options": ["a", "b"], "answer": 2}])
    with pytest.raises(UserError, match="answer 2 is no index of 2 options"):
        evaluate(FakeEmbedder(), tmp_path, TaskOptions())
