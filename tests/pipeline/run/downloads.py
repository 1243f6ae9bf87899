"""Jobs with light steps that really download, from a server that is down at first."""

import json
import socket
from functools import partial
from pathlib import Path

from pipeline.config import PipelineConfig
from pipeline.stages.stage import TableFunction
from tests.pipeline.poison import LightSteps, PoisonedSteps
from tests.pipeline.stages.download.server import TinyWeb

N_ROWS = 24
"""Rows of a shard."""


class DownloadingSteps(LightSteps):
    """Light steps with the real stage `download`."""

    def make_inner(self, name: str) -> TableFunction:
        return PoisonedSteps.make_inner(self, name) if name == "download" else super().make_inner(name)


def downloading_steps(config: PipelineConfig) -> "partial[DownloadingSteps]":
    """A picklable function that returns the steps, like `light_steps`."""
    from pipeline.run.provenance import make_provenance

    return partial(DownloadingSteps, config, make_provenance(config), ())


class Switch:
    """The port of a server, which is down until `start`."""

    def __init__(self) -> None:
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self.port: int = self._reserved.getsockname()[1]
        self._web: TinyWeb | None = None

    def start(self) -> None:
        """Start the server."""
        self._reserved.close()
        self._web = TinyWeb(self.port)

    def __enter__(self) -> "Switch":
        return self

    def __exit__(self, *_: object) -> None:
        self._reserved.close()
        if self._web is not None:
            self._web.close()


def make_rows(path: Path, port: int, n_shards: int) -> Path:
    """Write rows for `n_shards` shards whose images are at a port of this machine."""
    rows = (
        {"url": f"http://127.0.0.1:{port}/size/40x{40 + i}", "caption": f"a dog {i}"} for i in range(n_shards * N_ROWS)
    )
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path
