"""The results of a run: its evaluations and the trained model."""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch

from hypergrit_common.cli import MessageFormatter
from hypergrit_common.errors import NotFiniteError, UserError, prefixed
from hypergrit_common.text import counted
from trainer.checkpoints.folder import LOG_FILE
from trainer.checkpoints.model import save_model
from trainer.config import as_dict
from trainer.data.preprocess import PreprocessConfig
from trainer.distributed.process import StopRequest
from trainer.evaluation.held_out.share import InterruptedEvaluationError
from trainer.evaluation.metrics import in_words
from trainer.inference.hub import write_card
from trainer.models.dual_encoder import DualEncoder
from trainer.training.build import Training, full_model
from trainer.training.step import autocast
from trainer.training.writers import Metrics

logger = logging.getLogger(__name__)

LOGGED_RESULTS: Final = ("/accuracy", "/recall@5", "/order", "/auc", "/ap")
"""Endings of the evaluation results that are logged; metrics.jsonl has all of them."""


@contextmanager
def log_file(folder: Path, is_main: bool) -> Iterator[None]:
    """Append what the main process logs, and the error that ends the run, to FOLDER/train.log."""
    if not is_main:
        yield
        return
    handler = logging.FileHandler(folder / LOG_FILE, encoding="utf-8")
    handler.setFormatter(MessageFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger().addHandler(handler)
    try:
        yield
    except Exception as error:
        trace = None if isinstance(error, UserError | StoppedError) else (type(error), error, error.__traceback__)
        handler.handle(logging.LogRecord(__name__, logging.ERROR, __file__, 0, str(error), None, trace))
        raise
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


class StoppedError(Exception):
    """A signal stopped the run, which has saved a checkpoint."""

    def __init__(self, signal_number: int, message: str) -> None:
        super().__init__(message)
        self.signal_number = signal_number


@contextmanager
def write_errors_explained(path: Path) -> Iterator[None]:
    """Raise UserError, naming `path`, for any error of the file system."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error}; free disk space or give another output=, then repeat the command"
        ) from None


def evaluate(run: Training, metrics: Metrics | None, request: StopRequest) -> dict[str, float] | None:
    """Evaluate the model, write the results to the metrics and return them; None if a signal ended the evaluation.

    Collective: every rank embeds a part of the images and texts, and all have the results. The weights are those of
    `run.average`, if there is one.
    """
    devices = [run.process.device] if run.process.device.type == "cuda" else []
    try:
        with run.average.applied(), torch.random.fork_rng(devices), prefixed("evaluation."):
            results = run.evaluation(
                full_model(run).eval(),
                run.tokenizer,
                run.process.device,
                precision=lambda: autocast(run),
                is_stopping=lambda: request.signal_number is not None,
            )
    except NotFiniteError as error:
        logger.warning("step %d: %s", run.step, error)
        return {}
    except InterruptedEvaluationError:
        logger.warning("the evaluation of step %d was interrupted and has no results", run.step)
        return None
    finally:
        run.model.train()
    if metrics and results:
        metrics.write(run.step, results)
        logged = [f"{in_words(name)} {value:.3f}" for name, value in results.items() if name.endswith(LOGGED_RESULTS)]
        logger.info("step %d: %s", run.step, ", ".join(logged))
    return results


def save_trained_model(run: Training) -> None:
    """Save the trained model, or its average, in OUTPUT/model. Collective. Raises UserError if it cannot be written."""
    with run.average.applied():
        model = full_model(run)
        if run.process.is_main:
            write_model(run, model)


def write_model(run: Training, model: DualEncoder) -> None:
    """Write the files of `save_trained_model`."""
    output = run.folder.path
    draft, final = output / ".model", output / "model"
    shutil.rmtree(draft, ignore_errors=True)
    preprocess = PreprocessConfig(size_px=run.config.model.image.size_px)
    data = run.loader.data_facts
    facts = {"steps": run.step, "samples": run.step * run.config.batch_size}
    record = {**facts, "data": data, "training": as_dict(run.config)}
    with write_errors_explained(final):
        save_model(draft, model, tokenizer=run.tokenizer, preprocess=preprocess, record=record)
        write_card(draft)
        shutil.rmtree(final, ignore_errors=True)
        draft.rename(final)
    bad = ", ".join(f"{n:,} {name}" for name, n in run.loader.counts.items() if n and name.startswith("bad/"))
    read = f"{counted(run.loader.counts['samples'], 'sample')} read by this process{f', {bad}' if bad else ''}"
    logger.info("model saved in %s after %s; %s", final, counted(run.step, "step"), read)
