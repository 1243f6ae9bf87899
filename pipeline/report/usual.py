"""Usual shares of dropped rows, and the shares from which a person should look: one table, with its sources."""

from typing import Final, NamedTuple


class Usual(NamedTuple):
    """The usual share of drops among the rows that reach a stage; `reasons` are counted together, () for all."""

    stage: str
    reasons: tuple[str, ...]
    usual: float
    limit: float  # a report warns above it
    source: str


LAION: Final = "LAION-400M with img2dataset: 68 % of the downloads succeed (its issue 400)"
DEMO: Final = "the demo of HyperGRIT 0.6 with the miniature models: 185 rows with a phrase"
LINKS: Final = ("dns_error", "connection_error", "tls_error", "timeout")
NEVER: Final = "0 in a job whose input and settings fit each other"

USUAL: Final = (
    Usual("download", (), 0.5, 0.7, "GRIT with img2dataset: 50 to 60 % of the downloads succeed (hycoclip, issue 3)"),
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
