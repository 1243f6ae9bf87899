"""Usual shares of dropped rows, and the shares from which a person should look: one table, with its sources."""

from typing import Final, NamedTuple

from schemas.status import INTERNAL_ERROR, REASONS


class Usual(NamedTuple):
    """The usual share of drops among the rows that reach a stage; `reasons` are counted together, () for all.

    `usual` is None if no share is known.
    """

    stage: str
    reasons: tuple[str, ...]
    usual: float | None
    limit: float  # a report warns above it
    source: str


LAION: Final = "LAION-400M with img2dataset: 68 % of the downloads succeed (its issue 400)"
DEMO: Final = "the demo of HyperGRIT 0.6 with the miniature models: 185 rows with a phrase"
LINKS: Final = ("dns_error", "connection_error", "tls_error", "timeout")
NEVER: Final = "0 in a job whose input and settings fit each other"

CHOSEN: Final = frozenset({"not_selected", "taken_down", "in_evaluation_set", "same_url", "same_bytes", "same_picture"})
"""Drop reasons that the user asked for, by a setting or a command."""

KNOWN: Final = (
    Usual("download", (), 0.5, 0.7, "GRIT with img2dataset: 50 to 60 % of the downloads succeed (hycoclip, issue 3)"),
    Usual("download", ("http_error",), None, 0.5, "GRIT: at most 50 % of the downloads fail for any reason"),
    *(Usual("download", (reason,), 0.1, 0.32, f"all failures together in {LAION}") for reason in LINKS),
    Usual("download", ("undecodable", "not_an_image"), 0.1, 0.32, f"all failures together in {LAION}"),
    Usual("download", ("too_small",), 0.1, 0.32, f"all failures together in {LAION}"),
    Usual("read", ("bad_row", "missing_url"), 0.0, 0.02, NEVER),
    Usual("read", ("image_refused", "image_not_found"), 0.0, 0.02, NEVER),
    Usual("download", ("private_address", "invalid_url"), 0.0, 0.02, NEVER),
    Usual("parse", ("wrong_language",), 0.03, 0.3, "LAION: 1.6 to 3 % German or French captions in English subsets"),
    Usual("parse", ("no_phrase",), 0.02, 0.25, "the demo of HyperGRIT 0.6: 3 of 188 captions"),
    Usual("ground", ("no_box",), 0.0, 0.3, DEMO),
    Usual("score", ("low_score",), 0.01, 0.4, DEMO),
    Usual("score", ("low_clip_score",), 0.0, 0.4, DEMO),
    Usual("score", ("box_too_small",), 0.0, 0.3, DEMO),
)
OTHERS: Final = tuple(
    Usual(stage, (reason,), None, 0.1, "no share is known; the limit is a choice")
    for stage, reasons in REASONS.items()
    for reason in reasons
    if reason not in {*CHOSEN, INTERNAL_ERROR, *(name for share in KNOWN if share.stage == stage for name in share.reasons)}
)  # fmt: skip
"""All other drop reasons; the report warns about the first internal_error by itself."""
USUAL: Final = (*KNOWN, *OTHERS)
