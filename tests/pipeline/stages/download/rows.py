"""Tables for the download stage, and what becomes of their rows."""

from typing import Any

import pyarrow as pa

from pipeline.images import ResizeConfig
from pipeline.stages.download.config import DownloadConfig
from schemas.rows import READ
from tests.patience import PATIENCE_S
from tests.pipeline.settings import with_constants


def table(*urls: str) -> pa.Table:
    """A READ table of URLs with different captions."""
    rows = [
        {"key": f"{i:012d}", "source": "a", "source_row": i, "status": "kept", "caption_original": f"{i}", "url": url}
        for i, url in enumerate(urls)
    ]
    return pa.Table.from_pylist(rows, schema=READ)


def config(**settings: Any) -> DownloadConfig:
    """A configuration that waits for a busy machine, and may fetch from 127.0.0.1 and names below `test`."""
    names = (*("127.0.0.1", "localhost"), *(f"{kind}{i}.test" for kind in ("ok", "bad") for i in range(64)))
    defaults: dict[str, Any] = {
        "allowed_private_hosts": names,
        "connect_timeout_s": PATIENCE_S,
        "timeout_s": PATIENCE_S,
        "deadline_s": PATIENCE_S,
        "backoff_s": 0.05,
        "resize": ResizeConfig(size=32),
    }
    return with_constants(DownloadConfig, **{**defaults, **settings})


def reasons(found: pa.Table) -> list[str | None]:
    """The drop reason of each row, None for kept rows."""
    return found["reason"].to_pylist()
