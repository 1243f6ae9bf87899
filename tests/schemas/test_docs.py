"""docs/schemas.md is up to date and complete."""

from itertools import pairwise

import pyarrow as pa

from pipeline.stages.order import SCHEMAS
from schemas import docs
from schemas.docs import TARGET, render
from schemas.files import grit_schema
from schemas.status import REASONS, STAGES, check_reason


def test_the_document_is_up_to_date() -> None:
    assert TARGET.read_text(encoding="utf-8") == render(), "run `python -m schemas.docs`"


def test_the_tables_of_the_document_are_those_of_the_stages() -> None:
    assert docs.SCHEMAS == SCHEMAS


def test_every_field_at_every_depth_has_a_description() -> None:
    def fields(items: list[pa.Field]) -> list[pa.Field]:
        found = []
        for item in items:
            type_ = item.type.value_type if pa.types.is_list(item.type) else item.type
            nested = [type_.field(i) for i in range(type_.num_fields)] if pa.types.is_struct(type_) else []
            found += [item, *fields(nested)]
        return found

    for schema in [*SCHEMAS.values(), grit_schema("clip_similarity_x")]:
        assert all(item.metadata and item.metadata[b"doc"] for item in fields(list(schema)))


def test_each_stage_only_adds_columns() -> None:
    schemas = list(SCHEMAS.values())
    for before, after in pairwise(schemas):
        assert after.names[: len(before)] == before.names


def test_every_stage_has_drop_reasons_and_every_reason_is_in_the_document() -> None:
    assert tuple(REASONS) == STAGES
    text = render()
    for stage, reasons in REASONS.items():
        for reason in reasons:
            check_reason(stage, reason)
            assert f"| {stage} | `{reason}` |" in text
