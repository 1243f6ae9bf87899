"""The provenance of a shard: versions, models, thresholds and the hash of the configuration."""

import dataclasses
import os
import re
import socket
from collections.abc import Iterable
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Final

from fsspec.implementations.local import LocalFileSystem

from hypergrit_common.cli import INSTALL_MODELS
from hypergrit_common.disk import temporary_name
from hypergrit_common.endpoint import OPENAI
from hypergrit_common.errors import UserError
from hypergrit_common.files import file_hash
from hypergrit_common.image_codec import heif_formats
from hypergrit_common.lazy import is_plugin, load_plugin, plugin_hash
from hypergrit_common.locations import split_locations
from hypergrit_common.paths import absolute, check_input_is_absolute, check_output_is_absolute
from hypergrit_common.remote import open_store
from hypergrit_common.text import one_line
from hypergrit_common.urls import check_no_user, without_user
from hypergrit_common.version import hypergrit_version, package_version
from pipeline.config import PipelineConfig, content_hash
from pipeline.models import check_available, folder_hash
from pipeline.output.store import Store
from pipeline.stages.ground.grounder import Grounder
from pipeline.stages.ground.load import check_glip_files, grounder_path
from pipeline.stages.order import with_further
from pipeline.stages.parse.config import check_parser, parser_path, spacy_package
from pipeline.stages.score.filters import OPEN_CLIP, Encoder, resolve_thresholds, scorer_path
from schemas.files import FILES
from schemas.manifest import NO_MODEL, ModelIdentity, Plugin, Provenance
from schemas.rows import VERSION

PACKAGES: Final = (
    "torch",
    "torchvision",
    "transformers",
    "timm",
    "spacy",
    "pyarrow",
    "pillow",
    "opencv-python-headless",
    "ftfy",
)


def model_identity(name: str, path: str) -> ModelIdentity:
    """The name of a model, and the hash of its files if they are local."""
    return {"name": name, "sha256": folder_hash(path)} if Path(path).exists() else {"name": name}


def optional_packages(config: PipelineConfig) -> list[str]:
    """Return the packages of extras that decide the content of a job on this machine."""
    return [*(["py3langid"] if config.parse.languages else []), *(["pillow-heif"] if heif_formats() else [])]


def find_plugins(config: PipelineConfig) -> list[Plugin]:
    """Return the classes of the user in a configuration. Raises UserError if the code of stages is not loaded."""
    if len(config.stages) != len(config.further):
        raise UserError(
            f"the output was made with stages of its own; if you trust their code, give stages=[{','.join(config.stages)}] "
            "on the command line too"
        )
    found: list[Plugin] = []
    names = dict(zip(config.further, config.stages, strict=True))
    for before, stage in pairwise(with_further(config.further)):
        if stage in names:
            name = names[stage]
            identity = Plugin(name=name, sha256=plugin_hash(name))
            found.append({**identity, "stage": stage.name, "after": before.name, "reasons": dict(stage.reasons)})
    others = [
        name for name in (config.read.format, config.ground.grounder, config.score.scorer) if name and is_plugin(name)
    ]
    return found + [Plugin(name=name, sha256=plugin_hash(name)) for name in others if not name.startswith(OPEN_CLIP)]


def check_plugins(config: PipelineConfig, provenance: Provenance) -> None:
    """Raise UserError if this machine has other code of the user than the one where the job was started."""
    if (found := find_plugins(config)) != (expected := provenance.get("plugins", [])):
        names = ", ".join(plugin["name"] for plugin in found if plugin not in expected)
        raise UserError(
            f"{names} on {socket.gethostname()} is not the code of the job; copy the same files to all machines"
        )


def check_models(config: PipelineConfig) -> None:
    """Raise UserError if a model of the job does not exist: within seconds, before a row is read. No large one is loaded."""
    check_torch(config)
    for key, name, base in (("grounder", config.ground.grounder, Grounder), ("scorer", config.score.scorer, Encoder)):
        if is_plugin(name) and not name.startswith(OPEN_CLIP):
            load_plugin(name, base, key)
        elif name not in ("miniature", NO_MODEL) and not name.startswith((OPEN_CLIP, OPENAI)):
            check_available(key, name)
    check_glip_files(config.ground)
    check_parser(config.parse.model)
    if config.score.min_head_score is not None and config.score.head is None:
        raise UserError("score.min_head_score needs a head; give score.head=FILE, or leave out the threshold")
    if config.score.head and not Path(config.score.head).is_dir():  # a small file; a model is loaded by a worker
        from pipeline.stages.score.scorers import load_head  # imports torch

        load_head(config.score.head)
    if config.ground.vocabulary and not Path(config.ground.vocabulary).exists():
        raise UserError(f"ground.vocabulary={config.ground.vocabulary} does not exist; give a vocab.txt of BERT")


def check_torch(config: PipelineConfig) -> None:
    """Raise UserError if the job needs torch, which is not installed: with models, or to resize by torch's kernel."""
    models = {"grounder": config.ground.grounder, "scorer": config.score.scorer}
    needing = {name: value for name, value in models.items() if value != NO_MODEL}
    if config.download.resize.kernel == "bicubic" and config.download.resize.mode == "keep_ratio":
        needing["download.resize.kernel"] = "bicubic"
    if needing and find_spec("torch") is None:
        settings = ", ".join(f"{name}={value}" for name, value in needing.items())
        raise UserError(
            f"{settings}: torch is not installed; {INSTALL_MODELS}, or give grounder=none scorer=none parse.model=none "
            "download.resize.kernel=area, as jobs/pipeline/pairs.yaml does"
        )


def make_provenance(config: PipelineConfig) -> Provenance:
    """Collect everything that decides the content of a shard: a finished shard is reused only if all of it is equal.

    Raises UserError if a model or its calibrated threshold cannot be read.

    >>> from pipeline import load_config, make_provenance
    >>> provenance = make_provenance(load_config(["input=pairs.csv", "output=out"]))
    >>> provenance["models"]["grounder"]["name"], sorted(provenance["packages"])[:2]
    ('miniature', ['ftfy', 'opencv-python-headless'])
    """
    parser, grounder, scorer = config.parse.model, config.ground.grounder, config.score.scorer
    thresholds, plugins = resolve_thresholds(config.score, grounder), find_plugins(config)
    provenance: Provenance = {
        "hypergrit": hypergrit_version(),
        "schema": VERSION,
        "config_hash": content_hash(config),
        "packages": {name: package_version(name) for name in (*PACKAGES, *optional_packages(config))},
        "models": {
            "parser": {
                **model_identity(parser, parser_path(parser)),
                "version": package_version(spacy_package(parser)),
            },
            "grounder": model_identity(grounder, grounder_path(grounder)),
            "scorer": model_identity(scorer, scorer_path(scorer)),
        },
        "thresholds": thresholds.recorded,
    }
    if config.recaption.captioner is not None:
        provenance["models"]["captioner"] = {"name": config.recaption.captioner, "prompt": config.recaption.prompt}
    if config.score.head is not None:
        try:
            path = Path(config.score.head)
            digest = folder_hash(config.score.head) if path.is_dir() else file_hash(path)
        except OSError as error:
            raise UserError(f"score.head={config.score.head} cannot be read: {one_line(error)}") from error
        provenance["models"]["head"] = {"name": config.score.head, "sha256": digest}
    return {**provenance, "plugins": plugins} if plugins else provenance


# Checks of the input and output paths of a job, before anything is computed.

HTTP_QUERY: Final = re.compile(r"(https?://[^?#]*)\?", re.IGNORECASE)
"""A URL with a query, also behind a cache of fsspec; for other protocols, a question mark is a wildcard."""


def with_absolute_paths(config: PipelineConfig) -> PipelineConfig:
    """Make input, output and image roots absolute, since workers run in other folders.

    Raises UserError for one of them that is relative in a Ray job, for a URL with a user name or a password, and like
    `check_no_query`.
    """
    inputs = split_locations(config.input)
    for item in inputs:
        check_no_user("input", item)
        check_input_is_absolute(item)
    check_no_user("output", config.output)
    check_no_query(config, inputs)
    check_output_is_absolute(config.output, "an absolute path or a URL")
    roots = config.read.image_roots
    for root in roots:
        check_no_user("read.image_roots", root)
        check_input_is_absolute(root, "read.image_roots")
    read = dataclasses.replace(config.read, image_roots=tuple(map(absolute, roots))) if roots else config.read
    if read.takedown is not None:
        check_no_user("read.takedown", read.takedown)
        read = dataclasses.replace(read, takedown=absolute(read.takedown))
    paths = tuple(map(absolute, inputs))
    input = paths[0] if len(paths) == 1 and isinstance(config.input, str) else paths
    return dataclasses.replace(config, input=input, output=absolute(config.output), read=read)


def check_no_query(config: PipelineConfig, files: Iterable[str]) -> None:
    """Raise UserError if queries are removed from what is written, but an input file has one: `_job.json` has its path."""
    found = (HTTP_QUERY.search(path) for path in files if config.write.strip_url_queries)
    if match := next(filter(None, found), None):
        raise UserError(
            f"the input URL {without_user(match[1])} has a query, which config.yaml would repeat, but "
            "write.strip_url_queries=true forbids that; copy the file to a disk or a bucket and give its path, or its "
            "URL without a query and the credentials in the configuration of fsspec (docs/cluster.md)"
        )


def check_output_outside_input(config: PipelineConfig, files: Iterable[str]) -> None:
    """Raise UserError if the output is inside the input: the next run would read the shards of this one."""
    output_store, output = open_store(config.output)
    roots = [open_store(item) for item in split_locations(config.input)]
    if isinstance(output_store, LocalFileSystem):  # behind symbolic links, such as a /data that is one
        output, roots = os.path.realpath(output), [(store, os.path.realpath(root)) for store, root in roots]
        files = [os.path.join(os.path.realpath(name), "") for name in {os.path.dirname(path) for path in files}]
    inside = any(f"{output}/".startswith(f"{root.rstrip('/')}/") and store.isdir(root) for store, root in roots)
    names = (output_store.unstrip_protocol(output), output)
    shard_folders = tuple(f"{name}/{kind}/" for name in names for kind in FILES)
    if inside or any(path.startswith(shard_folders) for path in files):
        raise UserError(
            f"output {config.output!r} is within the input {config.input!r}: the next run would read the shards of "
            "this one; give an output= outside the input"
        )


def place_of(store: Store) -> str:
    """Return where an output is, behind symbolic links too, with a slash at the end: a URL, or an absolute path."""
    return os.path.join(os.path.realpath(store.root), "") if store.is_local else store.url("")


def check_apart(output: Store, sources: Iterable[Store]) -> None:
    """Raise UserError if an output is one of the sources, or one of them is in a folder of the other."""
    place = place_of(output)
    for source in sources:
        other = place_of(source)
        if place.startswith(other) or other.startswith(place):
            relation = "is" if place == other else "is inside" if place.startswith(other) else "holds"
            raise UserError(
                f"output={output.root} {relation} the source {source.root}; give another output=, since sources are left "
                "alone"
            )


def check_writable(output: Store) -> None:
    """Raise UserError unless a file can be created in `output`."""
    name = temporary_name(".writable")  # another job may check the same output at this moment
    try:
        output.write(name, "")
        output.remove([name])
    except OSError as error:
        raise UserError(
            f"output {output.root!r} is not writable: {error}; give another output=, or change the permissions"
        ) from None
