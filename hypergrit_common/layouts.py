"""Read samples of the supported layouts.

train      child.jpg, child.txt, numparents.txt, parent000.jpg, parent000.txt, ... and a JSON with the parse and, for
           RedCaps, the `subreddit`: the pipeline's train/ shards
hycoclip   the same without JSON: HyCoCLIP's processed GRIT
grit       jpg and a JSON with `caption`, `noun_chunks` and `ref_exps`; the last two are lists of
           [start, end, x_min, y_min, x_max, y_max, score] with corners as fractions of the image
pairs      jpg, and a txt or a JSON with `caption` and optionally `subreddit` (RedCaps)
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal

from hypergrit_common.samples import (
    BadSample,
    Box,
    Caption,
    Content,
    EncodedImage,
    Region,
    Sample,
    SampleFiles,
    Word,
    open_image,
    read_words,
)
from hypergrit_common.text import shortened
from schemas.files import (
    GRIT_CAPTION,
    GRIT_IMAGE,
    GRIT_JSON,
    TRAIN_ANNOTATIONS,
    TRAIN_BOX_IMAGE,
    TRAIN_BOX_PHRASE,
    TRAIN_CAPTION,
    TRAIN_IMAGE,
    TRAIN_N_PARENTS,
)
from schemas.training import Layout

IMAGES: Final = (GRIT_IMAGE, "jpeg", "png", "webp")  # extensions of the image in the layouts grit and pairs
MAX_SUBREDDIT: Final = 64  # characters; Reddit's names have at most 21
MIN_BOX_AREA_PX: Final = 32 * 32  # HyCoCLIP's conversion of GRIT keeps only boxes larger than this


def find_layout(files: SampleFiles) -> Layout:
    """Return the layout that the files of a sample match. Raises BadSample if they match none."""
    if TRAIN_IMAGE in files:
        return "train" if TRAIN_ANNOTATIONS in files else "hycoclip"
    read_image_file(files)  # raises BadSample if there is no image
    if GRIT_JSON in files and "noun_chunks" in files.json(GRIT_JSON):
        return "grit"
    if GRIT_CAPTION in files or GRIT_JSON in files:
        return "pairs"
    raise BadSample(
        "missing_member",
        f"the sample has an image but neither {GRIT_CAPTION} nor {GRIT_JSON}, only {', '.join(sorted(files.files))}",
    )


def read_sample(
    data: Content, layout: Layout | Literal["auto"], needs: frozenset[str], wanted: frozenset[str] = frozenset()
) -> Sample:
    """Read a sample from its bytes, in the layout "auto" that its files match.

    `needs` may contain "boxes", "parse" and "captions", and so may what is only `wanted`. With "pairs" among the needs,
    the sample may lack boxes.

    Raises BadSample if the sample is damaged or lacks something needed.
    """
    read: Callable[[SampleFiles, frozenset[str]], Sample]
    files = SampleFiles(data)
    match find_layout(files) if layout == "auto" else layout:
        case "train" | "hycoclip":
            read = read_train
        case "grit":
            read = read_grit
        case "pairs":
            read = read_pair
    sample = read(files, needs | wanted)
    if "boxes" in needs and "pairs" not in needs and not sample.boxes:
        raise BadSample("no_boxes", "the sample has no boxes")
    if "parse" in needs and sample.words is None:
        raise BadSample("no_parse", "the sample has no parse of its caption")
    if "levels" in needs and not any(sample.levels):
        raise BadSample("no_levels", "the sample has no labels of a taxonomy")
    return sample


def is_needed(kind: str, member: str, needs: frozenset[str]) -> bool:
    """Return False for a member, named without its key, that `read_sample` does not read; `kind` is the shard's format.

    `needs` contains "subreddit" if the JSON of the shard has one.

    The JSON is the last member of a train/ sample, and before it come the boxes: what is not needed is not read.
    """
    if kind != "train" or member in (TRAIN_IMAGE, TRAIN_CAPTION):
        return True
    of_json = {"parse", "subreddit", "captions", "levels", "hard_negatives"}
    return bool(needs & (of_json if member == TRAIN_ANNOTATIONS else {"boxes"}))


def read_train(files: SampleFiles, needs: frozenset[str]) -> Sample:
    """Read a sample of the layouts train and hycoclip."""
    caption = check_caption(files.text(TRAIN_CAPTION))
    fields = read_annotations(files, is_needed=bool(needs & {"parse", "captions", "hard_negatives"}))
    return Sample(
        key=files.key,
        image=open_image(files[TRAIN_IMAGE]),
        caption=caption,
        boxes=tuple(train_boxes(files, read_hard_negatives(fields, needs))) if "boxes" in needs else (),
        words=read_parse(fields, caption) if "parse" in needs else None,
        captions=read_captions(fields, needs),
        levels=read_levels(fields),
        subreddit=read_subreddit(fields),
    )


def read_annotations(files: SampleFiles, is_needed: bool) -> dict[str, Any]:
    """Return the JSON of a sample in the layout train, if something in it is used: parse, captions, levels, a subreddit."""
    if TRAIN_ANNOTATIONS not in files:
        return {}
    is_used = is_needed or any(key in files[TRAIN_ANNOTATIONS] for key in (b'"subreddit"', b'"levels"'))
    return files.json(TRAIN_ANNOTATIONS) if is_used else {}


def read_hard_negatives(fields: dict[str, Any], needs: frozenset[str]) -> dict[int, tuple[str, ...]]:
    """Return the hard negatives by the number of their phrase, if needed. Raises BadSample for another form."""
    try:
        entries = fields.get("hard_negatives", []) if "hard_negatives" in needs else []
        return {int(entry["parent"]): tuple(map(str.strip, entry["texts"])) for entry in entries}
    except (KeyError, TypeError, ValueError) as error:
        raise BadSample("bad_json", f"hard_negatives: {error}; each must have parent and texts") from error


def train_boxes(files: SampleFiles, negatives: Mapping[int, tuple[str, ...]]) -> Iterator[Box]:
    """Yield the boxes with their phrases (HyCoCLIP's "parents") and hard negatives, except those with an empty phrase.

    Raises BadSample if a file is missing, or if numparents.txt does not contain a number below 10000.
    """
    count = files.text(TRAIN_N_PARENTS).strip()
    if not count.isdecimal() or len(count) > 4:
        raise BadSample("missing_member", f"{TRAIN_N_PARENTS} contains {count[:20]!r} instead of a number below 10000")
    for index in range(int(count)):
        phrase = files.text(TRAIN_BOX_PHRASE.format(index))
        if phrase.strip():
            image = files[TRAIN_BOX_IMAGE.format(index)]
            yield Box(phrase=phrase, image=image, hard_negatives=negatives.get(index, ()))


def read_parse(fields: dict[str, Any], caption: str) -> tuple[Word, ...] | None:
    """Read the words of the parse from the pipeline's field `tokens`. Returns None if it is missing or empty.

    Raises BadSample if the words are not a parse of `caption`.
    """
    tokens = fields.get("tokens")
    if not tokens:
        return None
    if not isinstance(tokens, list):
        raise BadSample("no_parse", "the field tokens of the JSON is not a list")
    if fields.get("caption", caption) != caption:
        raise BadSample("no_parse", "the parse in the JSON belongs to a different caption")
    try:
        return tuple(read_words(tokens, caption))
    except ValueError as error:
        raise BadSample("no_parse", str(error)) from error


def read_grit(files: SampleFiles, needs: frozenset[str]) -> Sample:
    """Read a sample of raw GRIT."""
    fields = files.json(GRIT_JSON)
    caption = check_caption(fields.get("caption"), fields)
    image = open_image(read_image_file(files))
    return Sample(
        key=files.key,
        image=image,
        caption=caption,
        boxes=tuple(grit_boxes(fields, caption, image)) if "boxes" in needs else (),
        words=read_parse(fields, caption) if "parse" in needs else None,
        captions=read_captions(fields, needs),
        subreddit=read_subreddit(fields),
        pad_to_square=True,
    )


def grit_boxes(fields: dict[str, Any], caption: str, image: EncodedImage) -> Iterator[Box]:
    """Yield the boxes that HyCoCLIP's conversion of GRIT keeps: first of noun chunks, then of referring expressions.

    Only the first box of each distinct phrase counts; if it is too small, the phrase has no box. Corners are rounded
    down to pixels. Raises BadSample if the boxes do not have the expected form.
    """
    seen: set[str] = set()
    for name in ("noun_chunks", "ref_exps"):
        rows = fields.get(name) or ()
        try:
            for start, end, *corners in (row[:6] for row in rows):
                phrase = caption[int(start) : int(end)]
                if phrase in seen:
                    continue
                seen.add(phrase)
                x_min, y_min, x_max, y_max = (min(max(float(corner), 0.0), 1.0) for corner in corners)
                left, right = int(x_min * image.width), int(x_max * image.width)
                top, bottom = int(y_min * image.height), int(y_max * image.height)
                region = Region(left, top, max(right - left, 0), max(bottom - top, 0))
                if region.width * region.height > MIN_BOX_AREA_PX and phrase.strip():
                    yield Box(phrase=phrase, region=region)
        except (TypeError, ValueError, OverflowError, KeyError) as error:  # KeyError: slices of dictionaries
            expected = "[start, end, x_min, y_min, x_max, y_max, score]"
            raise BadSample("bad_json", f"{name}: {error}; each row must be {expected}") from error


def read_pair(files: SampleFiles, needs: frozenset[str]) -> Sample:
    """Read a sample of the layout pairs."""
    fields = files.json(GRIT_JSON) if GRIT_JSON in files else {}
    caption = check_caption(files.text(GRIT_CAPTION) if GRIT_CAPTION in files else fields.get("caption"), fields)
    return Sample(
        key=files.key,
        image=open_image(read_image_file(files)),
        caption=caption,
        words=read_parse(fields, caption) if "parse" in needs else None,
        captions=read_captions(fields, needs),
        subreddit=read_subreddit(fields),
    )


def read_captions(fields: dict[str, Any], needs: frozenset[str]) -> tuple[Caption, ...]:
    """Return the captions of a sample with several, if they are needed; those without a parse that is needed are left out.

    Raises BadSample if they do not have the expected form.
    """
    if "captions" not in needs or not fields.get("captions"):
        return ()
    try:
        found = [(str(item["kind"]), check_caption(item["text"]), item.get("tokens")) for item in fields["captions"]]
    except (AttributeError, KeyError, TypeError) as error:
        raise BadSample("bad_json", f"captions: {error}; each must have kind and text") from error
    if "parse" not in needs:
        return tuple(Caption(kind=kind, text=text) for kind, text, _ in found)
    parsed = ((kind, text, read_parse({"tokens": tokens}, text)) for kind, text, tokens in found)
    return tuple(Caption(kind=kind, text=text, words=words) for kind, text, words in parsed if words is not None)


def read_levels(fields: dict[str, Any]) -> tuple[str | None, ...]:
    """Return the labels of a taxonomy in the JSON of a sample, none without them. Raises BadSample for other values."""
    levels = fields.get("levels") or []
    if not isinstance(levels, list) or not all(label is None or isinstance(label, str) for label in levels):
        raise BadSample("bad_json", "the field levels of the JSON is not a list of texts")
    return tuple((label and label.strip()) or None for label in levels)


def read_subreddit(fields: dict[str, Any]) -> str | None:
    """Return the subreddit of a sample of RedCaps; None if the JSON has none, or one that is too long for a name."""
    subreddit = fields.get("subreddit")
    return subreddit if isinstance(subreddit, str) and 0 < len(subreddit) <= MAX_SUBREDDIT else None


def read_image_file(files: SampleFiles) -> bytes:
    """Return the encoded image of a sample in the layouts grit and pairs. Raises BadSample if it has none."""
    return next((files[name] for name in IMAGES if name in files), None) or files[GRIT_IMAGE]


def check_caption(caption: object, fields: dict[str, Any] | None = None) -> str:
    """Return the caption, from the `fields` of a JSON if they are given. Raises BadSample if it is missing or blank."""
    if isinstance(caption, str) and caption.strip():
        return caption
    if caption is None and fields is not None:
        raise BadSample(
            "no_caption", f"the JSON has no caption, only {shortened(sorted(fields), 8, ', ') or 'no field'}"
        )
    what = "blank" if isinstance(caption, str) else f"{json.dumps(caption):.60}, not a text"
    raise BadSample("no_caption", f"the caption is {what}")
