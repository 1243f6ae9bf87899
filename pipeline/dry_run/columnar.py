"""The bytes of arrow/ and of the parquet, measured on the whole sample at once, since larger batches compress better."""

import dataclasses
import io
from collections.abc import Mapping, Sequence

import pyarrow as pa

from pipeline.config import PipelineConfig
from pipeline.dry_run.steps import COLUMNAR, Measured, shared
from pipeline.write.arrow import write_arrow
from pipeline.write.grit import grit_columns, similarity_column, write_grit_parquet
from pipeline.write.index import file_metadata
from pipeline.write.secrets import remove_url_secrets
from schemas.manifest import Provenance
from schemas.status import KEPT


def pooled(samples: Sequence[Measured], config: PipelineConfig, provenance: Provenance) -> list[Measured]:
    """Return the sample shards with `bytes FILE` of the columnar files, divided by the size of the rows.

    Images in arrow/ are JPEGs and keep their size.
    """
    sizes = pooled_bytes(pa.concat_tables([sample.table for sample in samples]), config, provenance)
    weights = [weight for sample in samples for weight in sample.rows["weight"].to_pylist()]
    found: list[Measured] = []
    first = 0
    for sample in samples:
        rows, last = sample.rows, first + sample.rows.num_rows
        for kind, n_bytes in sizes.items():
            if kind not in sample.fixed:  # a format that is not written
                continue
            values = shared(max(n_bytes - sample.fixed[kind], 0), weights)[first:last]
            if kind == COLUMNAR[0]:
                values = [value + n for value, n in zip(values, stored_images(rows, config), strict=True)]
            rows = rows.append_column(f"bytes {kind}", pa.array(values, pa.float64()))
        found.append(dataclasses.replace(sample, rows=rows))
        first = last
    return found


def stored_images(rows: pa.Table, config: PipelineConfig) -> list[float]:
    """Return the bytes of the image of each row in arrow/: of kept rows with `write.image_bytes`, of others if any."""
    pairs = zip(rows["image"].to_pylist(), rows["status"].to_pylist(), strict=True)
    return [n if config.write.image_bytes or status != KEPT else 0.0 for n, status in pairs]


def pooled_bytes(table: pa.Table, config: PipelineConfig, provenance: Provenance) -> Mapping[str, int]:
    """Return the bytes of the columnar files of these rows, without images."""
    rows = [remove_url_secrets(row, strip_query=config.write.strip_url_queries) for row in table.to_pylist()]
    arrow, parquet = io.BytesIO(), io.BytesIO()
    write_arrow(arrow, rows, False, file_metadata(provenance))
    similarity = similarity_column(provenance["models"]["scorer"]["name"])
    columns = [grit_columns(row, config.write.ref_exps, similarity) for row in rows]
    write_grit_parquet(parquet, columns, similarity, file_metadata(provenance))
    return dict(zip(COLUMNAR, (arrow.tell(), parquet.tell()), strict=True))
