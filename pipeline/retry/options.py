"""The options of retry: which rows are tried again."""

import re
from dataclasses import dataclass
from typing import Final

from common.errors import UserError
from schemas.status import LASTING, PASSING, REASONS

STATUS: Final = re.compile(r"[1-9](xx|[0-9][0-9])")
ALLOWED: Final = frozenset(REASONS["download"]) - LASTING


@dataclass(frozen=True, kw_only=True)
class RetryOptions:
    """The options of retry."""

    # drop reasons of the download, and statuses of http_error: 429, or 5xx for all from 500 to 599
    reasons: tuple[str, ...] = PASSING
    # begin another attempt although the last one has not finished
    new_attempt: bool = False

    def __post_init__(self) -> None:
        wrong = [reason for reason in self.reasons if not is_reason(reason)]
        if wrong or not self.reasons:
            raise UserError(
                f"reasons is {list(self.reasons)}; give HTTP statuses (429, 5xx) and drop reasons of the download: "
                f"{', '.join(sorted(ALLOWED))}"
            )


def is_reason(value: object) -> bool:
    """Return True for a drop reason of the download that may pass, or an HTTP status."""
    return isinstance(value, str) and (value in ALLOWED or STATUS.fullmatch(value) is not None)


def is_retried(reasons: tuple[str, ...], stage: str | None, reason: str | None, detail: str | None) -> bool:
    """Return True if `reasons` name the drop of a row."""
    if stage != "download":
        return False
    status = detail or ""
    return reason in reasons or (reason == "http_error" and (status in reasons or f"{status[:1]}xx" in reasons))


def may_be_retried(reasons: tuple[str, ...], reason: str) -> bool:
    """Return True if `reasons` may name rows that the download dropped for this reason."""
    return reason in reasons or (reason == "http_error" and any(map(STATUS.fullmatch, reasons)))
