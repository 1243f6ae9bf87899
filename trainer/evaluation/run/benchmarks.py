"""Run the benchmarks of the papers on several models, one after the other, and write the pages."""

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from hypergrit_common.cli import BUG, INCOMPLETE
from hypergrit_common.config_help import print_lines
from hypergrit_common.errors import UserError
from hypergrit_common.files import check_link
from hypergrit_common.json_file import write_object
from hypergrit_common.lazy import is_plugin
from hypergrit_common.urls import safe_message
from trainer.checkpoints.model import LoadedModel, load_model
from trainer.distributed.gather import all_ranks, on_rank_0
from trainer.distributed.process import Process, process_group
from trainer.evaluation.catalog import TASKS
from trainer.evaluation.embedder import CachedEmbedder
from trainer.evaluation.report.page import write_pages
from trainer.evaluation.report.tables import build_table, notes_of, show
from trainer.evaluation.run.config import BenchmarkConfig
from trainer.evaluation.run.runner import CACHE, RunSettings, run_task, shards_state
from trainer.evaluation.task import TaskOptions
from trainer.models.registry import MODELS, model_name

logger = logging.getLogger(__name__)

MODELS_FILE: Final = "models.json"
"""File in the output folder: for each model its path, and its name and hash, or the error of loading it."""
RESERVED: Final = {CACHE, MODELS_FILE, "index.html", "summary.md"}
"""Names in the output folder that no model may have."""


def run_benchmarks(config: BenchmarkConfig) -> int:
    """Evaluate all models on all tasks, write the pages, and return the exit code.

    Raises UserError if no model can be loaded, no task has its files, there are no training shards, or the output
    cannot be written.
    """
    try:
        Path(config.output).mkdir(parents=True, exist_ok=True)
        with process_group(config.device, config.timeout_s) as process:
            if not process.is_main:
                logging.disable(logging.WARNING)  # rank 0 logs the same
            return evaluate_models(config, process)
    except OSError as error:
        raise UserError(f"output={config.output} cannot be written: {error}") from error


def evaluate_models(config: BenchmarkConfig, process: Process) -> int:
    """Evaluate the models on the device of this process; errors and result as in `run_benchmarks`."""
    tasks, output = config.tasks or tuple(TASKS), Path(config.output)
    settings = RunSettings(
        data=Path(config.data),
        output=output,
        options=TaskOptions(**{item.name: getattr(config, item.name) for item in fields(TaskOptions)}),
        train_shards=config.train_shards,
        training=shards_state(config.train_shards),
        workers=config.workers,
        figures=config.figures,
    )
    named = labels(config.model)
    on_rank_0(lambda: check_links(output, named))
    results: dict[str, dict[str, dict[str, Any]]] = {}
    models: dict[str, dict[str, str]] = {}
    failed: dict[str, str] = {}
    unfetched: dict[str, str] | None = None
    # Models that do not exist come first: their errors are known at once, not after hours.
    for label, source in sorted(named.items(), key=lambda item: Path(split(item[1])[1]).exists()):
        try:
            loaded = load(source, config.trust)
        except UserError as error:
            failed[label] = safe_message(str(error))
            models[label] = {"path": source, "error": failed[label]}
            logger.error("%s", error)
            continue
        if config.fetch and not results:
            from trainer.evaluation.sets.fetch import fetch_sets  # imports torchvision

            unfetched = all_ranks(on_rank_0(lambda: fetch_sets(settings.data, tasks)))[0]
        loaded.model.to(process.device)
        embedder = CachedEmbedder(
            loaded.model, loaded.tokenizer, output / CACHE, batch_size=config.batch_size, workers=config.workers
        )
        embedder.root = settings.data
        models[label] = {"path": source, "name": model_name(loaded.model), "hash": embedder.hash}
        results[label] = {}
        for task in tasks:
            results[label][task] = run_task(TASKS[task], embedder, label, settings)
            if process.is_main:
                write_pages(results, tasks, output, settings.data, failed)
        del loaded, embedder
    if process.is_main:
        write_object({"models": models}, output / MODELS_FILE)
    if not results:
        raise UserError("; ".join(failed.values()))
    if process.is_main:
        print_results(results, tasks, output)
    contents = [content for parts in results.values() for content in parts.values()]
    if any(content.get("kind") == "failed" for content in contents):
        return BUG
    if all("error" in content for content in contents):
        raise UserError(f"no task could be evaluated: {contents[0]['error']}")
    incomplete = any(is_incomplete(content, bool(config.tasks)) for content in contents)
    return INCOMPLETE if failed or unfetched or incomplete else 0


def check_links(output: Path, names: Iterable[str]) -> None:
    """Raise UserError for a folder of models or of the cache that is a link to one of other files, as in `check_link`."""
    cache = output / CACHE
    for path in (*(output / name for name in names), cache, *cache.glob("*"), *cache.glob("*/*")):
        if path.is_symlink() and path.is_dir():
            check_link(str(path))


def is_incomplete(content: dict[str, Any], is_named: bool) -> bool:
    """True for a task with malformed files or without contamination, and for one without files that the user named."""
    if "error" in content:
        return content["kind"] == "malformed" or (is_named and content["kind"] == "missing")
    return bool(content["details"].get("malformed")) or "contamination_error" in content


def labels(models: Sequence[str]) -> dict[str, str]:
    """A short distinct name for each model: the last parts of its path, without `model` and the suffix.

    Names in `RESERVED` are made longer. Raises UserError if a model is given twice.
    """
    twice = next((model for model in models if models.count(model) > 1), None)
    if twice is not None:
        raise UserError(f"model holds {twice} twice; give each model once")
    parts = {}
    for model in models:
        name, path = split(model)
        trimmed = Path(path).resolve()
        trimmed = trimmed.with_suffix("") if trimmed.suffix == ".pth" else trimmed
        parts[model] = (trimmed.parent if trimmed.name == "model" else trimmed).parts
        parts[model] = (*parts[model][:-1], f"{name}-{parts[model][-1]}") if name else parts[model]
    for n in range(1, max(map(len, parts.values()), default=0) + 1):
        names = {"-".join(parts[model][-n:]).strip("/") or "model": model for model in models}
        if len(names) == len(models) and not RESERVED & names.keys():
            return names
    return {hashlib.sha256(model.encode()).hexdigest()[:8]: model for model in models}


def split(model: str) -> tuple[str | None, str]:
    """Split NAME:FILE with a registered name or `module:Class` into name and path; others are paths without a name."""
    if is_plugin(plugin := ":".join(model.split(":", 2)[:2])) and model.count(":") > 1:
        return plugin, model.removeprefix(f"{plugin}:")
    name, colon, path = model.partition(":")
    return (name, path) if colon and name in MODELS else (None, model)


def load(model: str, trust: Sequence[str] = ()) -> LoadedModel:
    """Load a folder, or a released file given as NAME:FILE. Raises UserError."""
    name, path = split(model)
    try:
        return load_model(path, name, trust=trust)
    except (OSError, ValueError) as error:
        raise UserError(f"model={model}: {error}") from error


def print_results(results: dict[str, dict[str, dict[str, Any]]], tasks: Sequence[str], output: Path) -> None:
    """Print the metrics of the tables with their chance levels, and the path of the page."""
    lines = [f"{'model':20} {'metric':60} {'value':>8} {'chance':>8}"]
    for task in tasks:
        table = build_table(task, results)
        for line in table.lines:
            if line.is_ours:
                for name, cell in zip(table.columns, line.cells, strict=True):
                    chance = show(task, name, results[line.name][task]["chance"].get(name))
                    lines.append(f"{line.name:20} {f'{task}/{name}':60} {cell.text:>8} {chance:>8}".rstrip())
        lines += [safe_message(f"{task}: {note}") for note in notes_of(task, results)]
    print_lines([*lines, f"results: {output / 'index.html'}"])
