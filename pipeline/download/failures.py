"""The failure of a download."""

from schemas.table import Drop


class FetchError(Exception):
    """A failed download: the drop of the row, and whether and when a retry may succeed.

    `is_silence` marks an attempt that got no complete response: its host may be dead. `lack` is what this machine
    lacked (open files, ports), which is no fault of the row.
    """

    def __init__(
        self,
        reason: str,
        detail: str,
        *,
        is_transient: bool = False,
        retry_after_s: float = 0.0,
        is_silence: bool = False,
        lack: OSError | None = None,
    ) -> None:
        super().__init__(f"{reason}: {detail}")
        self.drop = Drop(reason, detail[:300])
        self.is_transient, self.retry_after_s = is_transient, retry_after_s
        self.is_silence, self.lack = is_silence, lack
