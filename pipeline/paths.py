"""Checks of the input and output paths of a job, before anything is computed."""

import dataclasses
import os
import re
import secrets
from collections.abc import Iterable
from typing import Final

from common.errors import UserError
from common.paths import absolute, check_input_is_absolute, check_output_is_absolute
from common.remote import open_store
from common.urls import check_no_user, without_user
from pipeline.config import PipelineConfig
from pipeline.write.store import Store
from schemas.files import FILES

HTTP_QUERY: Final = re.compile(r"(https?://[^?#]*)\?", re.IGNORECASE)
"""A URL with a query, also behind a cache of fsspec; for other protocols, a question mark is a wildcard."""


def with_absolute_paths(config: PipelineConfig) -> PipelineConfig:
    """Make input, output and image roots absolute, since workers run in other folders.

    Raises UserError for one of them that is relative in a Ray job, for a URL with a user name or a password, and like
    `check_no_query`.
    """
    check_no_user("input", config.input)
    check_no_user("output", config.output)
    check_no_query(config, [config.input])
    check_output_is_absolute(config.output, "an absolute path or a URL")
    roots = config.read.image_roots
    for root in roots:
        check_no_user("read.image_roots", root)
        check_input_is_absolute(root, "read.image_roots")
    check_input_is_absolute(config.input)
    read = dataclasses.replace(config.read, image_roots=tuple(map(absolute, roots))) if roots else config.read
    if read.takedown is not None:
        check_no_user("read.takedown", read.takedown)
        read = dataclasses.replace(read, takedown=absolute(read.takedown))
    return dataclasses.replace(config, input=absolute(config.input), output=absolute(config.output), read=read)


def check_no_query(config: PipelineConfig, files: Iterable[str]) -> None:
    """Raise UserError if queries are removed from what is written, but an input file has one: its path is written."""
    found = (HTTP_QUERY.search(path) for path in files if config.write.strip_url_queries)
    if match := next(filter(None, found), None):
        raise UserError(
            f"the input URL {without_user(match[1])} has a query, which every manifest would repeat, but "
            "write.strip_url_queries=true forbids that; copy the file to a disk or a bucket and give its path, or its "
            "URL without a query and the credentials in the configuration of fsspec (docs/cluster.md)"
        )


def check_output_outside_input(config: PipelineConfig, files: Iterable[str]) -> None:
    """Raise UserError if the output is inside the input: the next run would read the shards of this one."""
    filesystem, folder = open_store(config.input)
    output_store, output = open_store(config.output)
    inside = f"{output}/".startswith(f"{folder.rstrip('/')}/") and filesystem.isdir(folder)
    roots = (output_store.unstrip_protocol(output), output)
    shard_folders = tuple(f"{root}/{kind}/" for root in roots for kind in FILES)
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
    name = f".writable.{secrets.token_hex(8)}"  # another job may check the same output at this moment
    try:
        output.write(name, "")
        output.remove([name])
    except OSError as error:
        raise UserError(
            f"output {output.root!r} is not writable: {error}; give another output=, or change the permissions"
        ) from None
