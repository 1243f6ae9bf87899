"""The captions of a row after the first, which `ground` and `score` take as rows of their own (`ground.captions=all`)."""

from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa

from schemas.table import kept_indices, set_column

Images = Mapping[int, Any]
"""The stored images by row: a column of a table, or those of further captions."""


class Further:
    """The further captions of the kept rows without those `left_out`, by number: `rows` with the columns of a row.

    What a stage sets in these rows is in the table that `table` returns, as far as it is a field of a caption
    (schemas.rows.GROUNDED_CAPTION). `images` are the stored images.
    """

    def __init__(self, table: pa.Table, left_out: Collection[int] = ()) -> None:
        self._table, self._lists = table, table["captions"].to_pylist()
        found = [(i, c) for i in kept_indices(table) if i not in left_out for c in (self._lists[i] or ())[1:]]
        for i, caption in found:
            caption |= {name: table[name][i].as_py() for name in ("key", "width", "height")}
            caption["caption"] = caption["text"]
        self.rows: dict[int, dict[str, Any]] = {n: caption for n, (_, caption) in enumerate(found)}
        self.images: Images = {n: table["image"][i] for n, (i, _) in enumerate(found)}

    def table(self) -> pa.Table:
        """Return the table with the fields of the captions."""
        return set_column(self._table, "captions", pa.array(self._lists, self._table.schema.field("captions").type))
