"""The captions of a row after the first, which `ground` and `score` take as rows of their own (`ground.captions=all`)."""

from collections.abc import Collection
from typing import Any, Final

import pyarrow as pa

from schemas.table import kept_indices, set_column

SHARED: Final = ("key", "width", "height")


class Further:
    """The further captions of the kept rows without those `left_out`, by number: `rows` with the columns of a row.

    What a stage sets in these rows is in the table that `table` returns, as far as it is a field of a caption
    (schemas.rows.GROUNDED_CAPTION). `images` are the stored images.
    """

    def __init__(self, table: pa.Table, left_out: Collection[int] = ()) -> None:
        self._table, self._lists = table, table["captions"].to_pylist()
        kept = [i for i in kept_indices(table) if self._lists[i] and i not in left_out]
        shared = {name: table[name] for name in SHARED}
        self.rows: dict[int, dict[str, Any]] = {}
        self.images: dict[int, pa.Scalar] = {}
        for i in kept:
            for caption in self._lists[i][1:]:
                caption |= {"caption": caption["text"], "given_noun_chunks": None}
                caption |= {name: column[i].as_py() for name, column in shared.items()}
                self.images[len(self.rows)] = table["image"][i]
                self.rows[len(self.rows)] = caption

    def table(self) -> pa.Table:
        """Return the table with the fields of the captions."""
        return set_column(self._table, "captions", pa.array(self._lists, self._table.schema.field("captions").type))
