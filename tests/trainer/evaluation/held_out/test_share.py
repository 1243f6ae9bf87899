"""Items are read by workers, shared over the ranks in rounds, and kept in order; errors and signals reach all ranks."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from hypergrit_common.errors import UserError
from tests.trainer.distributed.test_precision import join_group, start
from tests.trainer.evaluation.held_out.test_evaluate import write_folder, write_shard
from tests.trainer.evaluation.tasks.embedding import model_and_tokenizer
from trainer.distributed.gather import rank
from trainer.evaluation.held_out.config import EvaluationConfig
from trainer.evaluation.held_out.evaluate import Evaluation
from trainer.evaluation.held_out.share import UNITS_PER_ROUND, InterruptedEvaluationError, Sharing, map_shared
from trainer.evaluation.metrics.ranking import BLOCK_NUMBERS, best_candidates, ranks_of_matches


def numbers(unit: range) -> list[int]:
    return list(unit)


def refuse_50(unit: range) -> list[int]:
    if 50 in unit:
        raise UserError("item 50 cannot be read")
    return list(unit)


def die_at_20(unit: range) -> list[int]:
    """Read items; item 20 kills its process on rank 0, as a lack of memory does."""
    if 20 in unit and rank() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return list(unit)


@pytest.mark.parametrize("workers", [0, 2])
def test_units_are_read_in_order_and_an_error_is_raised_as_it_is(workers: int) -> None:
    sharing = Sharing(batch_size=3, workers=workers)
    found = list(map_shared(70, numbers, sum, sharing))
    assert found == [sum(range(i, min(i + 3, 70))) for i in range(0, 70, 3)]
    with pytest.raises(UserError, match=r"^item 50 cannot be read$"):
        list(map_shared(70, refuse_50, sum, sharing))
    assert list(map_shared(0, numbers, sum, sharing)) == []


def test_a_signal_ends_the_evaluation_within_a_unit() -> None:
    computed: list[int] = []

    def compute(item: list[int]) -> int:
        computed.append(item[0])
        return 0

    sharing = Sharing(batch_size=1, is_stopping=lambda: len(computed) >= 3)
    with pytest.raises(InterruptedEvaluationError):
        list(map_shared(100, numbers, compute, sharing))
    assert computed == [0, 1, 2]


def two_ranks_of_which_one_loses_a_worker(number: int, folder: str) -> None:
    with join_group(number):
        try:
            list(map_shared(40, die_at_20, sum, Sharing(batch_size=1, workers=1)))
        except UserError as error:
            Path(folder, f"{number}.json").write_text(json.dumps(str(error)))


@pytest.mark.rest
def test_a_worker_process_that_dies_ends_the_evaluation_of_all_ranks_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    monkeypatch.setenv("TEST_PORT", str(free_port))
    start(two_ranks_of_which_one_loses_a_worker, str(tmp_path))
    first, second = (json.loads((tmp_path / f"{number}.json").read_text()) for number in range(2))
    assert first.startswith("image_folders or shards: a loader process was killed")
    assert "\n" not in first
    assert second == first


def two_ranks(number: int, folder: str) -> None:
    model, tokenizer = model_and_tokenizer("hycoclip")
    config = EvaluationConfig(image_folders=(f"{folder}/animals",), shards=f"{folder}/shards")
    mine: list[int] = []

    def compute(item: list[int]) -> list[int]:
        mine.extend(item)
        return item

    with join_group(number) as process:
        every = [i for unit in map_shared(40, numbers, compute, Sharing(batch_size=1)) for i in unit]
        try:
            list(map_shared(40, numbers, compute, Sharing(batch_size=1, is_stopping=lambda: rank() == 1)))
        except InterruptedEvaluationError:
            stopped = True
        try:
            list(map_shared(60, refuse_50, sum, Sharing(batch_size=1)))
        except UserError as error:
            message = str(error)
        results = Evaluation(config, workers=1)(model, tokenizer, process.device)
    Path(folder, f"{number}.json").write_text(json.dumps([every, mine[:40], stopped, message, results]))


def test_two_ranks_share_the_work_and_have_the_results_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    monkeypatch.setenv("TEST_PORT", str(free_port))
    monkeypatch.setattr(EvaluationConfig, "batch_size", 2)
    write_folder(tmp_path / "animals")
    write_shard(tmp_path / "shards")
    start(two_ranks, str(tmp_path))
    found = [json.loads((tmp_path / f"{number}.json").read_text()) for number in range(2)]
    for every, _, stopped, message, _ in found:
        assert every == list(range(40))
        assert stopped
        assert message == "item 50 cannot be read"
    assert found[0][1][:UNITS_PER_ROUND] == list(range(UNITS_PER_ROUND))
    assert found[1][1][:UNITS_PER_ROUND] == list(range(UNITS_PER_ROUND, 2 * UNITS_PER_ROUND))
    torch.set_num_threads(1)  # as on the ranks: sums depend on it
    model, tokenizer = model_and_tokenizer("hycoclip")
    config = EvaluationConfig(image_folders=(str(tmp_path / "animals"),), shards=str(tmp_path / "shards"))
    expected = Evaluation(config)(model, tokenizer, "cpu")
    assert found[0][4] == found[1][4] == pytest.approx(expected, abs=1e-6)


def test_retrieval_and_classification_hold_no_more_scores_than_a_block() -> None:
    """PHyCLIP compares k factors of each pair: 64 x 1,500 x 1,500 numbers would be 34 blocks."""
    torch.manual_seed(0)
    queries, candidates = torch.randn(64, 1500, 2), torch.randn(64, 1500, 2)
    sizes: list[int] = []

    def score(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x) * x.shape[-2] * y.shape[-2])
        return torch.einsum("kqd,knd->qn", x, y)

    ranks, best = ranks_of_matches(score, queries, candidates), best_candidates(score, queries, candidates)
    assert max(sizes) <= BLOCK_NUMBERS
    table = torch.einsum("kqd,knd->qn", queries, candidates)
    order = table.argsort(dim=1, descending=True, stable=True)
    assert torch.equal(ranks, (order == torch.arange(1500)[:, None]).int().argmax(1))
    assert torch.equal(best, table.argmax(1))


def test_equal_scores_keep_the_order_of_the_candidates_and_no_number_ranks_last() -> None:
    points = torch.zeros(4, 2)
    assert ranks_of_matches(lambda x, y: x @ y.T, points, points).tolist() == [0, 1, 2, 3]
    nan = torch.full((4, 2), torch.nan)
    assert ranks_of_matches(lambda x, y: x @ y.T, nan, nan).tolist() == [3, 3, 3, 3]
