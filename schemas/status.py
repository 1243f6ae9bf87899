"""Reasons to drop a row and to remove a phrase or a box: closed lists of names.

The names contain no numbers, so that rows can be counted by reason; numbers and messages are in the column `detail`.
"""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from schemas.scores import BOX_SCORES, SCORES

KEPT: Final = "kept"
DROPPED: Final = "dropped"

INTERNAL_ERROR: Final = "internal_error"
"""The drop reason of every stage for a row that the code cannot process."""
_INTERNAL = {INTERNAL_ERROR: "the stage raised an exception, crashed, hung or ran out of memory on this row"}

_OWN: Final = {
    "read": {
        "bad_row": "the row cannot be read: invalid JSON, or a value of the wrong type",
        "missing_url": "the row has neither a URL nor image bytes",
        "not_selected": "the row does not meet the condition `read.where`",
        "image_refused": "the image is a file or an object that `read.image_roots` does not allow to read",
        "image_not_found": "the image is a file or an object that does not exist or may not be read",
        "taken_down": "`read.takedown` or hypergrit takedown names the URL or its host; nothing but the key is kept",
    },
    "download": {
        "invalid_url": "the URL is not a well-formed http(s) address",
        "private_address": "the host, or the host of a redirect, has a private, loopback or link-local address",
        "dns_error": "the host name cannot be resolved",
        "connection_error": "the connection was refused, reset or closed",
        "tls_error": "the certificate or the TLS handshake failed",
        "timeout": "the server did not deliver the image within the time limit",
        "http_error": "the response has an error status, or no whole image and a status other than 200",
        "too_many_redirects": "the number of redirects exceeds the limit",
        "opted_out": "the server opts out of machine learning (X-Robots-Tag)",
        "tdm_reserved": "the server reserves text and data mining (tdm-reservation)",
        "usage_refused": "the server refuses the use for training (Content-Usage)",
        "robots_txt": "the robots.txt of the host does not allow the path (only with `download.robots_txt`)",
        "too_many_bytes": "the body is larger than the limit",
        "not_an_image": "the body is not in a supported image format",
        "undecodable": "the first bytes are those of an image, but it is damaged or truncated",
        "too_many_pixels": "the header declares more pixels than the limit; the image is not decoded",
        "too_costly": "decoding takes far more time or memory than the size explains: scans, tiles, fill bytes",
        "too_small": "the shorter side of the image is below the limit",
        "extreme_aspect_ratio": "the ratio of the longer to the shorter side exceeds the limit",
        "taken_down": "`read.takedown` or hypergrit takedown names the SHA-256 of the image; only the key is kept",
        "in_evaluation_set": "the image is in a set of `hypergrit rewrite against=SET`",
        "duplicate": "an earlier row of the same shard has the same image and the same caption",
    },
    "captions": {
        "empty_caption": "the caption is empty after cleaning",
        "caption_too_long": "the caption has more characters or tokens than the limit",
    },
    "recaption": {},
    "parse": {
        "wrong_language": "the caption is probably in none of the languages of `parse.languages`",
        "no_phrase": "the caption has no noun chunk, or all were removed (pronouns, abstract and relational nouns)",
    },
    "ground": {
        "no_box": "the grounder found no box for any phrase",
        "ungroundable": "the grounder can process none of the phrases, or no phrase of the input is in the caption",
    },
    "score": {
        "box_too_small": "the last remaining boxes were below the size limit",
        **{score.reason: score.dropped for score in SCORES},
    },
    "write": {
        "same_url": "a row that stays has the same URL; `detail` is its key",
        "same_bytes": "a row that stays has the same image bytes (`sha256`); `detail` is its key",
        "same_picture": "the perceptual hash of a row that stays is within the radius; `detail` is its key",
    },
}
REASONS: Final = MappingProxyType({stage: {**_INTERNAL, **reasons} for stage, reasons in _OWN.items()})
"""Stage -> drop reason -> its meaning."""
STAGES: Final = tuple(REASONS)


def further_reasons(provenance: Mapping[str, Any]) -> dict[str, Mapping[str, str]]:
    """Return the drop reasons of the stages of the user that a provenance records: stage -> drop reason -> meaning."""
    plugins = provenance.get("plugins", ())
    return {plugin["stage"]: {**plugin["reasons"], **_INTERNAL} for plugin in plugins if "stage" in plugin}


def all_reasons(provenance: Mapping[str, Any], dropped: Iterable[str] = ()) -> dict[str, Mapping[str, str]]:
    """Return REASONS with those of a provenance, in the order of its stages; others that have `dropped` rows come last."""
    further, names = further_reasons(provenance), list(REASONS)
    for plugin in provenance.get("plugins", ()):
        if "stage" in plugin:
            names.insert(names.index(plugin["after"]) + 1, plugin["stage"])
    names += [name for name in dropped if name not in names]
    return {name: {**REASONS.get(name, {}), **further.get(name, {})} for name in names}


OF_IMAGES: Final = frozenset(
    {"not_an_image", "undecodable", "too_many_pixels", "too_costly", "too_small", "extreme_aspect_ratio", "taken_down"}
    | {"in_evaluation_set", "duplicate"}
)
"""Drop reasons of `download` that are found in the image, wherever it is from: also of images that the input holds."""


def shown_stage(stage: str, reason: str) -> str:
    """Return what readers are told dropped a row: not `download` for an image that was there."""
    return "images" if stage == "download" and reason in OF_IMAGES else stage


KEY_REASONS: Final = frozenset({"duplicate", "same_url", "same_bytes", "same_picture"})
"""Drop reasons whose `detail` is the key of another row."""

PASSING: Final = ("timeout", "dns_error", "connection_error", "408", "425", "429", "5xx")
"""Failures of a download that can pass: drop reasons, and HTTP statuses, which are the detail of `http_error`."""
LASTING: Final = frozenset({"duplicate", "taken_down", "in_evaluation_set"})
"""Drop reasons of `download` that do not pass."""

PHRASE_REMOVALS: Final = MappingProxyType(
    {
        "no_letter": "the chunk contains no letter (a number, an emoji, a punctuation mark), or mostly other than Latin ones",
        "pronoun": "the chunk is a pronoun or contains no noun",
        "abstract": "the head noun is one of parse.extra_abstract, or with style=grit one of GRIT's 14 nouns (time, love)",
        "absent": "the chunk names what is not in the picture (no cars, without a hat)",
        "invisible": "the chunk probably names nothing visible (parse.min_visible)",
        "address": "a URL, file name, handle or address, which the parser does not see",
        "tag": "hashtags that are no part of a sentence",
        "credit": "the author, owner or agency of the picture (Photo by Jane Roe)",
        "date": "a date or time",
        "price": "a price or discount",
        "measure": "a size, weight, number of pieces or other measure",
        "stock": "words about the picture, an offer or the page (stock photo, isolated on white, free shipping, step 3)",
        "social": "words of social networks without content (lol, OOTD, thanks)",
        "position": "where somebody stands in a group picture (left, L-R)",
        "bad_span": "the span of the phrase is not inside the caption",
        "no_word_piece": "the grounder's tokenizer yields no token for the phrase (whitespace, control characters)",
        "unknown_words": "all word pieces of the phrase are unknown to the grounder (emoji, foreign scripts)",
        "too_many_word_pieces": "the phrase alone exceeds the maximum prompt length of the grounder",
        "unreadable_answer": "the answer of the vision-language model is not the JSON that was asked for",
        "refused_request": "the endpoint refuses the request, such as for its length or its image",
    }
)
"""Reasons to remove a noun chunk before grounding: those up to `position` are set by `parse`, the others by `ground`."""

BOX_REMOVALS: Final = MappingProxyType(
    {
        "box_too_small": "area or side (score.size_rule) below the limit, in pixels of the stored image",
        **{score.reason: score.removed for score in BOX_SCORES},
    }
)
"""Reasons to remove a box, in the order in which the filters are applied."""
ROW_DROPPED: Final = "row_dropped"
"""In statistics, the reason for boxes that no filter of boxes removed, but whose row was dropped."""

ROW_DROPPED_EARLY: Final = "row_dropped_early"
GIVEN_REMOVALS: Final = MappingProxyType(
    {
        "not_in_caption": "cleaning or captions.redact changed the phrase, or its text is not in the caption",
        "outside_caption": "the span of the phrase is not inside the caption",
        "empty_span": "the span of the phrase is empty, or holds only spaces",
        "other_units": "the spans of the row fit words only if they count bytes or UTF-16 units, not characters",
        "absent": "the phrase names what is not in the picture (no cars, without a hat)",
        ROW_DROPPED_EARLY: "the row was dropped before its boxes were filtered",
    }
)
"""Reasons why a box of the input is lost before the filters. In `given_chunks`, -1 stands for the first, -2 for the second,
and so on; the last one is there in statistics alone."""


def given_code(reason: str) -> int:
    """Return the number of a reason of GIVEN_REMOVALS in `given_chunks`."""
    return -1 - tuple(GIVEN_REMOVALS).index(reason)


def lost_boxes(row: Mapping[str, Any]) -> list[str]:
    """Return the reason of GIVEN_REMOVALS of each given box of a SCORED row that the filters have not seen."""
    chunks, names = row.get("given_chunks") or [0] * len(row.get("given_noun_chunks") or ()), tuple(GIVEN_REMOVALS)
    is_early = row.get("box_scores") is None
    return [names[-1 - chunk] if chunk < 0 else ROW_DROPPED_EARLY for chunk in chunks if chunk < 0 or is_early]


def check_reason(stage: str, reason: str, further: Mapping[str, Collection[str]] = MappingProxyType({})) -> None:
    """Raise ValueError unless `reason` is a drop reason of `stage`; `further` are the reasons of other stages by name."""
    known = sorted({*REASONS.get(stage, {}), *further.get(stage, ())})
    if reason not in known:
        raise ValueError(f"{reason!r} is not a drop reason of stage {stage!r}; use one of {known}")
