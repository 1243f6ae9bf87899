"""Rows of two outputs that belong together."""

from pathlib import Path

import pyarrow as pa

from pipeline.explore.index import open_output
from pipeline.explore.pairs import pair_rows
from tests.pipeline.commands.derive.outputs import lost
from tests.pipeline.explore.outputs import write_output


def test_rows_with_one_url_are_paired_in_their_order(tmp_path: Path) -> None:
    urls = (["u", "u", "v", None, "x"], ["v", "u", "w", "u", "u", None])
    outputs = [
        open_output(write_output(tmp_path / str(i), [[lost(source="s", url=url) for url in found]], "formats=[arrow]"))
        for i, found in enumerate(urls)
    ]
    found = [pa.ipc.open_file(pair_rows(outputs, name)).read_all()["row"].to_pylist() for name in ("url", "key")]
    assert found == [[1, 3, 0, -1, -1], [0, 1, 2, 3, 4]]
