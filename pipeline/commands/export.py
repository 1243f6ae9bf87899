"""The verb `export` for outputs of the pipeline: pictures, boxes, phrases and scores in a format that other tools read."""

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal

import pyarrow.compute as pc

from hypergrit_common.cli import EXIT_CODES
from hypergrit_common.config_help import print_text
from hypergrit_common.errors import UserError
from hypergrit_common.files import MARK, new_folder
from hypergrit_common.text import one_line
from pipeline.commands.export_card import PICTURES_FILE, Card, check_license, write_croissant
from pipeline.commands.export_formats import FORMATS, SCHEMA, Record, write_line
from pipeline.commands.export_licenses import ANY, Permits, read_facts
from pipeline.commands.frame import output_command
from pipeline.commands.takedown import dropped_columns, stage_files
from pipeline.faults import ShardError
from pipeline.output.commit import Staging
from pipeline.output.ledger import check_finished, check_provenance, read_images, read_manifests, read_rows
from pipeline.output.source import READ, check_hashes
from pipeline.output.store import Store, check_outside_outputs
from pipeline.output.takedowns import check_unchanged, find_rows, leftovers, strangers
from pipeline.output.write.samples import kept_boxes, shorten_floats, shortest_float
from pipeline.stages.parse.labels import label_of
from pipeline.stages.parse.types import Token
from schemas.files import FILES, INDEX_FILE, ShardFile
from schemas.manifest import Manifest
from schemas.status import KEPT

USAGE: Final = f"""\
usage: hypergrit export OUT [output=FOLDER format=FORMAT] [to=hub repo=OWNER/NAME] [key=value ...]
       hypergrit export MODEL FOLDER [format=onnx]     a model for open_clip or ONNX, or back

Writes the kept rows of a finished output with boxes, phrases and scores in the format of other tools, divided by the seed
into train and val, with pictures.jsonl (sources, captions, boxes), a dataset card (README.md) and Croissant metadata.

  hypergrit export out/web output=out/coco format=coco              COCO's JSON: classes are the head nouns of the phrases
  hypergrit export out/web output=out/odvg format=odvg              JSON lines of MM-Grounding-DINO, with whole phrases
  hypergrit export out/web output=out/lance format=lance            one table with images and boxes; needs pylance
  hypergrit export out/web output=out/coco format=coco to=hub repo=me/boxes license=cc-by-4.0
  hypergrit export out/web to=hub repo=me/shards                    the shards of grit/ and train/, and a card

The hub gets the pictures with an open licence alone (CC BY, CC BY-SA, CC0, public domain), which a column of the input
names; the others are counted by reason.

  OUT    output folder of a job, with arrow/, and with grit/ or write.image_bytes=true
  MODEL  the folder of a finished run, its folder model/, or an exported one: hypergrit export MODEL FOLDER --help

{EXIT_CODES}
"""
COLUMNS: Final = (
    *("key", "url", "status", "caption", "width", "height", "sha256", "extra", "tokens", "noun_chunks"),
    *("boxes", "box_scores", "clip_similarity"),
)
SHARDS: Final = ["grit/**", "train/**", "_index/**"]
"""Files of an output that are uploaded as they are."""
ALL: Final = (*(kind for kinds in FILES.values() for kind in kinds), INDEX_FILE)


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The options of export."""

    # new folder
    output: str | None = None
    # format of the boxes; pictures.jsonl has them in any case
    format: Literal["coco", "odvg", "lance"] | None = None
    # hub: upload the folder as a data set of the Hugging Face hub, with the token of `hf auth login`
    to: Literal["hub"] | None = None
    # its repository, owner/name, which is created if it does not exist
    repo: str | None = None
    # create a public repository
    public: bool = False
    # share of the pictures in val; a picture that occurs twice is in one of them
    validation: float = 0.0
    # seed of the division
    seed: int = 0
    # hub: licences that are published too, by name (cc-by-nc, cc-by-nd-4.0); none: rows without one; any: all rows
    licenses: tuple[str, ...] = ()
    # identifier of the licence of the annotations, such as cc-by-4.0; that of each picture is its owner's
    license: str = "other"

    def __post_init__(self) -> None:
        if (self.format is None) != (self.output is None) or (self.format is None and self.to is None):
            raise UserError("give output=FOLDER and format=FORMAT, or to=hub alone for the shards as they are")
        if (self.to is None) != (self.repo is None):
            raise UserError("to=hub and repo=OWNER/NAME belong together; give both")
        if self.licenses and self.to is None:
            raise UserError("licenses= decides what to=hub publishes; give to=hub, or leave it out")
        if not 0 <= self.validation < 1:
            raise UserError(f"validation is {self.validation}; give a share from 0 to below 1")
        check_license(self.license)


def export_output(source: str, options: ExportOptions) -> int:
    """Export an output, or upload it; return the exit code."""
    check_outside_outputs(output=options.output)
    store = Store(source)
    check_finished(store, manifests := read_manifests(store))
    check_provenance(store, manifests)
    permits = Permits(options.licenses if options.to == "hub" else [ANY])
    if options.output is not None:
        export(store, manifests, options, Path(options.output), permits)
        print_text(f"{options.output} is written")
    if options.to == "hub":
        upload(store, manifests, options, permits)
    return 0


def export(store: Store, manifests: Sequence[Manifest], options: ExportOptions, output: Path, permits: Permits) -> None:
    """Write the folder, which appears when it is complete.

    Raises UserError if it exists, if it cannot be written, and if rows are taken down meanwhile.
    """
    try:
        with new_folder(output) as draft:
            write_folder(store, manifests, options, draft, permits)
            check_unchanged(store)
    except OSError as error:
        raise UserError(f"{output} cannot be written: {one_line(error)}; give another output=") from error


def write_folder(
    store: Store, manifests: Sequence[Manifest], options: ExportOptions, folder: Path, permits: Permits
) -> None:
    """Write all pictures in the format, and what describes them. Raises UserError if there are none."""
    writer = FORMATS[str(options.format)](folder)
    card = Card(folder, manifests, str(options.format), options.license, permits)
    with (folder / PICTURES_FILE).open("w", encoding="utf-8") as file:
        for record, image in read_records(store, manifests, options, permits):
            write_line(file, record)
            writer.add(record, image)
            card.add(record, image)
    check_permitted(permits)
    if not card.splits:
        raise UserError("the output has no kept row with an image; see its report.html")
    writer.close()
    card.write()
    write_croissant(folder, options.license)


def read_records(
    store: Store, manifests: Sequence[Manifest], options: ExportOptions, permits: Permits
) -> Iterator[tuple[Record, bytes]]:
    """Yield the kept rows that have an image and may be published, in their order."""
    for manifest in manifests:
        check_shard(store, manifest)
        kept = read_rows(store, [manifest], COLUMNS, pc.field("status") == KEPT)
        rows = [row for row in kept if not permits.refuses(read_facts(row))]
        images = read_images(store, manifest, {row["key"] for row in rows})
        for row in rows:
            if row["width"] is None or row["height"] is None:
                raise UserError(f"row {row['key']} of {store.root} is kept without a size; make its shard again")
            if row["key"] in images:
                split = split_of(row["sha256"] or row["key"], options.seed, options.validation)
                yield record_of(row, split, has_file=options.format != "lance"), images[row["key"]]


def check_shard(store: Store, manifest: Manifest, kinds: Sequence[ShardFile] = READ) -> None:
    """Raise UserError for a shard of which one of these files is damaged, or that has a row that was taken down."""
    try:
        check_hashes(store, manifest, kinds)
    except ShardError as error:
        raise UserError(str(error)) from error
    if (key := next(iter(find_rows(store, manifest, store.takedowns)), None)) is not None:
        raise UserError(f"row {key} was taken down from {store.root}, but is there; run hypergrit takedown again")


def split_of(identity: str, seed: int, validation: float) -> str:
    """Return the split of a picture: a function of seed and content alone, so that copies are in the same one."""
    number = int.from_bytes(hashlib.sha256(f"{seed}:{identity}".encode()).digest()[:8])
    return "val" if number < validation * 2**64 else "train"


def record_of(row: Record, split: str, has_file: bool) -> Record:
    """Return a kept row with its kept boxes; `has_file`: the image is a file of the folder."""
    own: Record = {
        **read_facts(row),
        "split": split,
        "file": f"images/{split}/{row['key']}.jpg" if has_file else None,
        "clip_similarity": shortest_float(row["clip_similarity"]),
        "boxes": [region_of(row, i) for i in kept_boxes(row)],
    }
    return {name: own.get(name, row.get(name)) for name in SCHEMA.names}


def region_of(row: Record, i: int) -> Record:
    """Return a box with its phrase, and the label of its head noun; without a parse, the phrase is the label."""
    box, chunk = shorten_floats(row["boxes"][i]), row["noun_chunks"][row["boxes"][i]["phrase"]]
    phrase = row["caption"][chunk["start"] : chunk["end"]]
    head = Token(**row["tokens"][chunk["root"]]) if row["tokens"] and chunk["root"] >= 0 else None
    # A token that is longer than the phrase is no word: the parser does not know this language.
    is_word = head is not None and chunk["start"] <= head.start and head.end <= chunk["end"]
    label = label_of(row["caption"], head) if head and is_word else phrase
    return {
        "phrase": phrase,
        "start": chunk["start"],
        "end": chunk["end"],
        "label": " ".join(label.lower().split()),
        "box": [box[name] for name in ("x_min", "y_min", "x_max", "y_max")],
        "score": box["score"],
        "clip_cosine": shortest_float(row["box_scores"][i]["clip_cosine"]),
    }


def check_permitted(permits: Permits) -> None:
    """Tell how many pictures are left out. Raises UserError if none may be published."""
    if permits.refused and not permits.published:
        raise UserError(
            f"no picture may be published: {permits.describe()}; the input needs a column with open licences "
            "(docs/export.md), or name others that you publish: licenses=[cc-by-nc], [none] for rows without one, [any]"
        )
    if permits.refused:
        print_text(
            f"left out for their licence: {permits.describe()}; {permits.published.total()} pictures are published"
        )


def upload(store: Store, manifests: Sequence[Manifest], options: ExportOptions, permits: Permits) -> None:
    """Upload the folder of the export, or the shards of the output with a card. Raises UserError."""
    from huggingface_hub import HfApi

    if options.output is None and not store.is_local:
        raise UserError(f"{store.root} is no folder of this machine; copy it, or give output= and format=")
    place: dict[str, Any] = {"repo_id": options.repo, "repo_type": "dataset"}
    with tempfile.TemporaryDirectory() as folder:
        copied = [] if options.output is not None else describe_shards(store, manifests, options, permits, Path(folder))
        api = HfApi()
        try:
            api.create_repo(**place, private=not options.public, exist_ok=True)
            if options.output is not None:
                api.upload_folder(folder_path=options.output, **place)
            else:
                api.upload_folder(folder_path=folder, **place)
                unused = [name for names in leftovers(store, manifests).values() for name in names]
                others = [*strangers(store), *unused, *copied, f"*/{MARK}"]
                api.upload_folder(folder_path=store.root, allow_patterns=SHARDS, ignore_patterns=others, **place)
        except UserError:
            raise
        except Exception as error:  # of the hub's client, whose network errors have no common class
            reason = one_line(error)[:300]
            raise UserError(
                f"the hub does not take {options.repo}: {reason}; check the name and `hf auth login`"
            ) from error
    print_text(f"https://huggingface.co/datasets/{options.repo}")


def describe_shards(
    store: Store, manifests: Sequence[Manifest], options: ExportOptions, permits: Permits, folder: Path
) -> list[str]:
    """Write the card, the licences of the pictures, and the shards with rows that may not be published, without these.

    Returns the files of the output in place of which are others. Raises UserError.
    """
    copied: list[str] = []
    with (folder / PICTURES_FILE).open("w", encoding="utf-8") as file:
        for manifest in manifests:
            check_shard(store, manifest, ALL)
            if refused := dict.fromkeys(find_refused(store, manifest, permits, file), "export: licence"):
                own = {name: facts for name, facts in manifest["files"].items() if not name.startswith("arrow/")}
                with Staging(Store(str(folder))) as staging:
                    stage_files(store, staging, {**manifest, "files": own}, refused, dropped_columns)
                    staging.publish()
                copied += own
    check_permitted(permits)
    Card(folder, manifests, "webdataset", options.license, permits).write()
    return copied


def find_refused(store: Store, manifest: Manifest, permits: Permits, file: IO[str]) -> Iterator[str]:
    """Yield the keys of the rows that may not be published; write a line for each picture that may be. Raises UserError."""
    if "arrow" not in manifest["formats"] and not permits.is_any:
        raise UserError(
            f"shard {manifest['shard']} has no arrow/ with licences; licenses=[any] publishes its rows all the same"
        )
    for row in read_rows(store, [manifest], ("key", "url", "status", "extra")):
        facts, is_kept = read_facts(row), row["status"] == KEPT
        if permits.refuses(facts, is_kept):
            yield row["key"]
        elif is_kept:
            write_line(file, {"key": row["key"], **facts})


main = output_command(USAGE, "hypergrit export OUT output=FOLDER format=coco", ExportOptions, export_output)
