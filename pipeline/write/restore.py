"""Restore a lost index of a shard from the headers of its tars, so that its images need not be downloaded again."""

import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from itertools import groupby

from common.remote import store_errors
from common.tar import Member, TarError, iter_members, reader_of, round_up_to_block
from pipeline.write.index import file_metadata, write_index
from pipeline.write.staging import Staging
from pipeline.write.store import Store
from pipeline.write.tar import Place, SamplePlace
from schemas.files import FILES, INDEX_FILE, INDEX_SUBREDDITS
from schemas.manifest import Manifest


def restore_index(store: Store, manifest: Manifest, formats: Sequence[str]) -> bool:
    """Write the index of a shard again; return False if its tars do not give the bytes that the manifest names.

    `formats` are those of the shard, in the order in which they were written. Raises UserError if the index cannot be
    written.
    """
    name = store.file(INDEX_FILE, manifest["shard"])
    facts = manifest["files"][name]
    content = find_content(store, manifest, formats, facts["sha256"])
    if content is None:
        return False
    with Staging(store) as staging:
        with staging.open(name, rows=0) as file:
            file.write(content)
        staging.publish()
    return True


def find_content(store: Store, manifest: Manifest, formats: Sequence[str], sha256: str) -> bytes | None:
    """Return the index with this hash, with or without the mark for subreddits; None if neither has it."""
    tars = {kind: store.file(FILES[kind][0], manifest["shard"]) for kind in formats if FILES[kind][0].suffix == ".tar"}
    try:
        places = {kind: list(read_places(store, name)) for kind, name in tars.items()}
    except store_errors(ValueError, TarError):
        return None
    metadata = file_metadata(manifest["provenance"])
    for mark in ({}, {INDEX_SUBREDDITS: "true"}):
        file = io.BytesIO()
        write_index(file, places, metadata | mark)
        if hashlib.sha256(content := file.getvalue()).hexdigest() == sha256:
            return content
    return None


def read_places(store: Store, name: str) -> Iterator[SamplePlace]:
    """Yield the places of the samples of a tar. Raises TarError and errors of the store."""
    with store.fs.open(store.path(name), "rb") as file:
        members = iter_members(reader_of(file), 0, file.seek(0, os.SEEK_END))
        for key, found in groupby(members, key_of):
            sample = list(found)
            places = [Place(item.name.partition(".")[2], item.data_offset, item.size) for item in sample]
            end = places[-1].offset + round_up_to_block(places[-1].size)
            yield SamplePlace(key, sample[0].header_offset, end, places)


def key_of(member: Member) -> str:
    """Return the key of a member's sample."""
    return member.name.partition(".")[0]
