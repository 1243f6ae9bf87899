"""The failure of a download."""

from enum import Enum

from schemas.table import Drop


class Verdict(Enum):
    """Evidence of a failed attempt about its host."""

    ANSWERED = "it sent a complete response, or was not asked"
    SILENT = "it sent none, although it had the full time, or it broke off"
    NOTHING = "it sent none, but the attempt was cut short for a reason that is not its own"


class FetchError(Exception):
    """A failed download: the drop of the row, and whether and when a retry may succeed.

    `verdict` is about the host, which may be dead. `lack` is what this machine lacked (open files, ports), which is no
    fault of the row. `is_unreached` marks an attempt, begun at `start_s`, in which not one packet came back, perhaps
    because this machine has no network.
    """

    def __init__(
        self,
        reason: str,
        detail: str,
        *,
        is_transient: bool = False,
        retry_after_s: float = 0.0,
        verdict: Verdict = Verdict.ANSWERED,
        lack: OSError | None = None,
        is_unreached: bool = False,
    ) -> None:
        super().__init__(f"{reason}: {detail}")
        self.drop = Drop(reason, detail[:300])
        self.is_transient, self.retry_after_s = is_transient, retry_after_s
        self.verdict, self.lack = verdict, lack
        self.is_unreached, self.start_s = is_unreached, 0.0
