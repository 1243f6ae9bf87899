"""Parsing of untrusted JSON objects."""

import json

from pipeline.read.types import BadRecord, Record


def parse_json(text: bytes) -> Record | BadRecord:
    """Parse a JSON object; anything else becomes a BadRecord."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        return BadRecord(f"not valid JSON: {error}")
    return record if isinstance(record, dict) else BadRecord(f"a JSON {type(record).__name__}, not an object")
