"""The steps of the job for the rows of a shard that are tried again."""

from collections.abc import Iterable, Iterator
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from common.errors import UserError
from pipeline.config import PipelineConfig, runtime_settings
from pipeline.download.permits import PermitAddress
from pipeline.faults.fault import ShardError
from pipeline.read.stage import planned_rows
from pipeline.read.types import ShardPlan
from pipeline.report.ledger import write_summary
from pipeline.retry.ledger import Ledger, drop_seen, read_ledger
from pipeline.run import Part, Steps
from pipeline.write.attempts import make_retry, read_earlier
from pipeline.write.stage import write_shard
from pipeline.write.store import Store
from schemas.attempts import shard_of
from schemas.manifest import Manifest, Provenance


class RetrySteps(Steps):
    """The steps of a process that computes shards of pipeline.retry.

    A plan has the input rows of the job's shard and an index of its own (schemas.attempts). The rows to try again are
    those of `Ledger`. Raises ShardError, besides the exceptions of `Steps`, if an earlier attempt cannot be read.
    """

    def __init__(
        self,
        config: PipelineConfig,
        provenance: Provenance,
        reasons: tuple[str, ...],
        permits: PermitAddress | None = None,
        lease: str | None = None,
    ) -> None:
        super().__init__(config, provenance, permits, lease)
        self.reasons = reasons
        self._ledger: tuple[int, Ledger] | None = None

    def ledger(self, plan: ShardPlan) -> Ledger:
        """Return what earlier attempts say about the rows of a shard; that of the last plan is kept."""
        if self._ledger is None or self._ledger[0] != plan.index:
            store = Store(self.config.output)
            try:
                ledger = read_ledger(store, read_earlier(store, plan.index), self.reasons)
            except UserError as error:
                raise ShardError(str(error)) from error
            if len(ledger.rows) != plan.n_rows:
                raise ShardError(
                    f"shard {shard_of(plan.index)} has changed meanwhile: {len(ledger.rows)} rows to try again"
                )
            self._ledger = plan.index, ledger
        return self._ledger[1]

    def read(self, plan: ShardPlan, rows: pa.Table | None = None) -> Iterator[Part]:
        """Yield the rows to try again, read from the input: arrow/ may lack the queries of URLs."""
        rows = planned_rows(plan) if rows is None else rows
        keys = pa.array(list(self.ledger(plan).rows), pa.string())
        yield from super().read(plan, rows.filter(pc.is_in(rows["key"], keys)))

    def download(self, plan: ShardPlan, parts: Iterable[Part]) -> Part:
        """Download the images; drop rows that repeat one of an earlier attempt."""
        table, notes = super().download(plan, parts)
        return drop_seen(table, self.ledger(plan).seen), notes

    def commit(self, plan: ShardPlan, table: pa.Table) -> Manifest:
        """Write the files of a shard, whose manifest names the drops that it replaces, and count it with those before."""
        config, before = self.config, self.ledger(plan).rows
        results = (before[key] for key in table["key"].to_pylist())
        retry = make_retry(plan.index, ((attempt, str(stage), str(reason)) for attempt, stage, reason in results))
        runtime = runtime_settings(config)
        manifest = write_shard(
            table, plan, config.write, self.store, self.provenance, runtime, retry=retry, lease=self.lease
        )
        with suppress(UserError, ValueError):  # the shard is committed; the report counts it then
            write_summary(self.store, [*read_earlier(self.store, plan.index), manifest])
        return manifest
