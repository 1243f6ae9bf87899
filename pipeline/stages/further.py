"""The captions of a row after the first, which `ground` and `score` take as rows of their own (`ground.captions=all`)."""

from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa

from schemas.table import kept_indices, set_column

Images = Mapping[int, Any]
"""The stored images by row: a column of a table, or those of further captions."""


class Further:
    """The further captions of the kept rows, as rows of their own.

    What a stage sets in `rows` is in the table that `table` returns, as far as it is a field of a caption
    (schemas.rows.GROUNDED_CAPTION).

    Args:
        table: a table after `captions`.
        left_out: positions of kept rows whose further captions are left out.

    Attributes:
        rows: number of a further caption -> its fields, and `key`, `width`, `height` and `caption` as columns of a row.
        images: number of a further caption -> the stored image of its row.
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
        """Return the table with what the stage has set.

        Returns:
            The table with its column `captions` replaced, rows in the same order.
        """
        return set_column(self._table, "captions", pa.array(self._lists, self._table.schema.field("captions").type))
