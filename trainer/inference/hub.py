"""Models on the Hugging Face hub: folders of `trainer.checkpoints.model` as repositories, with a model card."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from hypergrit_common.disk import atomic_write
from hypergrit_common.errors import UserError
from hypergrit_common.html import render_page
from hypergrit_common.json_file import read_object, write_object
from hypergrit_common.lazy import is_plugin
from hypergrit_common.urls import clean
from trainer.checkpoints.towers import COPY
from trainer.evaluation.report.tables import row
from trainer.models.registry import MODELS

# The model card of a saved model: README.md of its folder, with the front matter of the Hugging Face hub.

CARD: Final = "README.md"
LIBRARY: Final = "hypergrit"
TASK: Final = "zero-shot-image-classification"
UNKNOWN_LICENSE: Final = "unknown"
"""Identifier of the hub for weights whose license nobody has stated."""


def write_card(folder: Path, results: Mapping[str, float] | None = None, license: str = UNKNOWN_LICENSE) -> None:
    """Write the card of a model folder.

    Args:
        folder: folder of `save_model`.
        results: figures of an evaluation, which are added to its config.json; None: those that are there.
        license: identifier of the hub, such as cc-by-4.0.

    Raises:
        OSError: the folder has no config.json, or cannot be written.
        ValueError: its config.json cannot be read.
    """
    config = read_object(folder / "config.json")
    if results is not None:
        config["record"] = {**config.get("record", {}), "evaluation": dict(results)}
        write_object(config, folder / "config.json")
    with atomic_write(folder / CARD) as draft:
        draft.write_text(model_card(config, license), encoding="utf-8")


def check_license(license: str) -> None:
    """Raise UserError unless `license` is a word."""
    if not re.fullmatch(r"[\w.+-]+", license):
        raise UserError(f"{license!r} is no identifier of a license; give one of the hub, such as cc-by-4.0")


def model_card(config: Mapping[str, Any], license: str = UNKNOWN_LICENSE) -> str:
    """The card as Markdown, from the config.json of a model folder. Texts are escaped; URLs have no secrets, and absolute paths no folders.

    `config["record"]` documents the training: `training` is the configuration of the run, `data` the shards with their
    hash, `evaluation` the results by name; `command` is a command that includes the training, and `version` that of
    HyperGRIT. What is missing is left out. Raises UserError unless `license` is a word.
    """
    check_license(license)
    record = clean(dict(config.get("record") or {}), strip_query=True, strip_folders=True)
    name = str(config["model"])
    title = name.rpartition(":")[2] if is_plugin(name) else MODELS[name].title if name in MODELS else name
    kind = ["clip"] if name == "clip" else ["hyperbolic", title if is_plugin(name) else name]
    training, results = mapping_of(record.get("training")), mapping_of(record.get("evaluation"))
    shards = {"shards": training["data"].get("shards")} if mapping_of(training.get("data")) else {}
    return render_page(
        Path(__file__).parent,
        "card.md",
        {},
        fenced=fenced,
        table=table,
        as_yaml=as_yaml,
        front={"license": license, "library_name": LIBRARY, "pipeline_tag": TASK, "tags": ["image-text", *kind]},
        name=name,
        title=title,
        trust=f', trust=["{name}"]' if is_plugin(name) else "",
        width=int(config["config"]["embed_dim"]),
        data=shards | mapping_of(record.get("data")),
        facts={key: record[key] for key in ("version", "steps", "samples", "pairs", "seed") if key in record},
        command=str(record.get("command") or ""),
        training=training,
        settings=config["config"],
        results={key: f"{value:.4f}" if isinstance(value, float) else value for key, value in results.items()},
    )


def mapping_of(value: Any) -> dict[str, Any]:
    """An object of the record; empty for another value."""
    return dict(value) if isinstance(value, Mapping) else {}


def table(head: str, rows: Mapping[str, Any]) -> str:
    """A table of two columns in Markdown."""
    return "\n".join([row(head, "value"), "|---|---|", *(row(str(key), str(value)) for key, value in rows.items())])


def fenced(language: str, text: str) -> str:
    """A code block, with a fence that is longer than all runs of backticks in `text`."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.strip()}\n{fence}"


def as_yaml(values: Any) -> str:
    """Plain values as YAML, keys in the given order."""
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)


PARTS: Final = ("config.json", "model.safetensors", "merges.txt", "tokenizer.json")
FILES: Final = (*PARTS, CARD, *(f"{COPY}/{name}" for name in PARTS))
"""All files of a model, and of the frozen model of a head. No others are downloaded or uploaded."""
REPOSITORY: Final = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def fetch_model(name: str, revision: str | None = None, token: str | None = None) -> Path:
    """Return a folder or file on this machine, or download a repository OWNER/NAME of the hub and return its folder.

    `revision` is a branch, tag or commit. With HF_HUB_OFFLINE=1, only the cache is used. Raises UserError if the name is
    neither, or if the repository cannot be fetched.
    """
    if Path(name).exists():
        return Path(name)
    if not REPOSITORY.fullmatch(name):
        raise UserError(
            f"{name} does not exist on this machine; give a folder, or OWNER/NAME of a repository of the hub"
        )
    from huggingface_hub import snapshot_download  # imported here, because it takes long

    try:
        return Path(snapshot_download(name, revision=revision, token=token, allow_patterns=list(FILES)))
    except Exception as error:  # the type of network errors depends on the version of huggingface_hub
        raise UserError(
            f"{name} is not on this machine and cannot be fetched from the hub: {reason(error)}; check the name, the "
            "network and, for a private repository, the token"
        ) from error


def push_folder(folder: Path, name: str, token: str | None = None, private: bool | None = None) -> str:
    """Upload a model folder to the repository OWNER/NAME of the hub, which is created if it is missing; return its URL.

    Without `token`, that of `hf auth login` or HF_TOKEN is used. `private` is the visibility of a new repository; None
    is the default of its owner. Raises UserError if the hub refuses or cannot be reached.
    """
    if not REPOSITORY.fullmatch(name):
        raise UserError(f"{name!r} is not the name of a repository; give OWNER/NAME")
    from huggingface_hub import HfApi

    try:
        api = HfApi(token=token)
        url = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=name, folder_path=folder, allow_patterns=list(FILES), commit_message="Upload a model of HyperGRIT"
        )
    except Exception as error:  # as in `fetch_model`
        raise UserError(
            f"{name} cannot be uploaded to the hub: {reason(error)}; check the name, the network and the token, which needs "
            "write access"
        ) from error
    return str(url)


def reason(error: Exception) -> str:
    """The first line of an error."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
