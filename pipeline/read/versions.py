"""The version of an object, by which a change of it is noticed."""

import re
from collections.abc import Mapping
from typing import Any, Final

VERSION_KEYS: Final = (
    *("etag", "md5hash", "contentmd5", "digest", "versionid"),
    *("lastmodified", "updated", "timemodified", "modified", "mtime"),
)
"""Names that stores and HTTP servers have for the version of an object, without punctuation, the best first."""


def object_version(info: Mapping[str, Any]) -> str:
    """Return the ETag of an object, or the value that its store has in place of one; "" if it has neither."""
    found = {re.sub(r"[^a-z0-9]", "", name.lower()): value for name, value in info.items()}
    return next((str(found[key]).strip('"') for key in VERSION_KEYS if found.get(key)), "")
