"""Why a row, a phrase or a box did not make it: closed lists, short names, no numbers (those go to `detail`)."""

from types import MappingProxyType
from typing import Final, Literal, get_args

Stage = Literal["read", "download", "captions", "parse", "ground", "score", "write"]
STAGES: Final[tuple[Stage, ...]] = get_args(Stage)

KEPT: Final = "kept"
DROPPED: Final = "dropped"

REASONS: Final = MappingProxyType(
    {
        "read": {
            "bad_row": "the row could not be read: not valid JSON, or a value of the wrong type",
            "missing_url": "the row has neither a URL nor image bytes",
        },
        "download": {
            "invalid_url": "the URL is not a well-formed http(s) address",
            "private_address": "the host, or a redirect's host, is a private, loopback or link-local address",
            "dns_error": "the host name did not resolve",
            "connection_error": "the connection was refused, reset or broken off",
            "tls_error": "the certificate or the TLS handshake failed",
            "timeout": "the server did not deliver within the time allowed",
            "http_error": "the server answered with a status other than 200",
            "too_many_redirects": "more redirects than allowed",
            "opted_out": "the server asks not to be used for machine learning (X-Robots-Tag)",
            "too_many_bytes": "the body is larger than the limit",
            "not_an_image": "the body is no image format we read",
            "undecodable": "an image by its first bytes, but damaged or truncated",
            "too_many_pixels": "the header announces more pixels than the limit; it was not decoded",
            "too_small": "the image's shorter side is below the limit",
            "extreme_aspect_ratio": "the longer side is more than the allowed multiple of the shorter side",
            "duplicate": "an earlier row of the same shard has the same image and the same caption",
        },
        "captions": {
            "empty_caption": "nothing is left of the caption after cleaning",
            "caption_too_long": "the caption has more characters than the limit",
        },
        "parse": {
            "no_phrase": "no noun chunk is left once pronouns and abstract nouns are removed",
        },
        "ground": {
            "no_box": "the grounder found no box for any phrase",
            "ungroundable": "no phrase has a token the grounder knows, or the given phrases do not fit the caption",
        },
        "score": {
            "box_too_small": "the last boxes left were below the size limit",
            "low_score": "the last boxes left had too low a grounding score",
            "low_clip_score": "the last boxes left did not look like their phrases to the scorer",
        },
        "write": {},
    }
)
"""Reasons a row is dropped, by the stage that drops it, each with what it means."""

PHRASE_REMOVALS: Final = MappingProxyType(
    {
        "pronoun": "the chunk is a pronoun or holds no noun",
        "abstract": "the head noun names nothing one can point at (time, love, freedom)",
        "relational": "the head noun names a place in or the form of the picture itself (left, front, photo)",
        "bad_span": "the phrase does not lie inside the caption",
        "no_word_piece": "nothing is left of the phrase in the grounder's word pieces (white space, control characters)",
        "unknown_words": "the grounder's vocabulary knows no part of the phrase (emoji, foreign scripts)",
        "too_many_word_pieces": "the phrase alone is longer than the grounder's prompt",
    }
)
"""Why a noun chunk is not grounded: the first three are the parser's verdict, the others the grounder's."""

BOX_REMOVALS: Final = MappingProxyType(
    {
        "box_too_small": "area (or a side) below the limit, in pixels of the stored image",
        "low_score": "grounding score below the threshold",
        "low_clip_score": "CLIP score of crop against phrase below the threshold",
    }
)
"""Why a box is not kept; the filters act in this order."""


def check_reason(stage: str, reason: str) -> None:
    """Raise ValueError unless `reason` is on the closed list of `stage`."""
    if reason not in REASONS.get(stage, {}):
        raise ValueError(f"{reason!r} is no drop reason of stage {stage!r}; known: {sorted(REASONS.get(stage, {}))}")
