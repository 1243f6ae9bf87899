"""The licences of the rows of an export: their names, whom to credit, and which rows may be published."""

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Final

ANY: Final = "any"
"""In `licenses`: publish all rows, whatever their licence."""
NONE: Final = "none"
"""In `licenses`: publish rows without a licence too."""
COLUMNS: Final = {
    "license": ("license", "licence", "licenseurl", "licenceurl", "licensename", "licencename"),
    "author": ("author", "creator", "artist", "photographer", "attribution", "credit"),
    "title": ("title",),
    "page": ("originallandingurl", "foreignlandingurl", "landingurl", "pageurl", "source"),
}
"""Fact -> columns of the input that have it, in lower case and without underscores, the best first."""
URL: Final = re.compile(
    r"(?:https?:)?(?://)?(?:www\.)?creativecommons\.org/"
    r"(?:licenses/(?P<kind>by[a-z-]*)/(?P<version>\d\.\d)|(?P<public>publicdomain/zero|publicdomain/mark|licenses/publicdomain)"
    r"(?:/1\.0)?)(?:/[a-z]{2,3})?(?:/(?:deed|legalcode)[a-z._-]*)?/?"
)
NAME: Final = re.compile(
    r"(?:cc-)?(?P<kind>by(?:-(?:nc|nd|sa))*)(?:-v?(?P<version>\d(?:\.\d)?))?"
    r"(?:-(?:generic|international|unported|int|licen[cs]e|public-licen[cs]e))*"
)
WORDS: Final = {
    r"[\s_/,()-]+": "-", r"creative-?commons": "cc", r"attribution": "by", r"non-?commercial": "nc", r"share-?alike": "sa",
    r"no-?deriv(?:ative)?s?(?:-works)?": "nd", r"^(?:cc-)+": "cc-", r"^ccby": "cc-by", r"^-|-$": "",
}  # fmt: skip
"""Patterns of a licence in words, and what stands for them in its name."""
PUBLIC: Final = {
    r"publicdomain/zero|(?:cc-?)+(?:0|zero)(?:-v?1\.0)?(?:-universal)?(?:-public-domain-dedication)?": "cc0-1.0",
    r"publicdomain/mark|(?:cc-)?(?:public-?domain-mark|pdm)(?:-1\.0)?": "pdm-1.0",
    r"licenses/publicdomain|(?:cc-)?(?:public-?domain|pd|pddc)": "public-domain",
}
"""Patterns of what belongs to the public, and its names."""
OPEN: Final = re.compile(r"cc-by(?:-sa)?(?:-\d\.\d)?|cc0-1\.0|pdm-1\.0|public-domain")
"""The names of licences with which everybody may publish a picture again, and change it."""


def license_name(text: str) -> str | None:
    """Return the name of a licence of Creative Commons, or of the public domain, in the manner of SPDX; None for others.

    >>> [license_name(text) for text in ("https://creativecommons.org/licenses/by/2.0/", "CC BY-NC 4.0", "CC0", "mine")]
    ['cc-by-2.0', 'cc-by-nc-4.0', 'cc0-1.0', None]
    """
    found = URL.fullmatch(text := text.strip().lower())
    if found is None:
        for pattern, word in WORDS.items():
            text = re.sub(pattern, word, text)
    public = found["public"] if found else text
    if name := next((name for pattern, name in PUBLIC.items() if re.fullmatch(pattern, public or "")), None):
        return name
    if (found := found or NAME.fullmatch(text)) is None:
        return None
    terms = {*found["kind"].split("-")} - {"by", ""}
    if terms - {"nc", "nd", "sa"} or terms >= {"nd", "sa"}:
        return None
    version = found["version"] and (found["version"] if "." in found["version"] else f"{found['version']}.0")
    return "-".join(["cc-by", *(term for term in ("nc", "nd", "sa") if term in terms), *([version] if version else [])])


def read_facts(row: Mapping[str, Any]) -> dict[str, str | None]:
    """Return URL, licence, its name (`license_name`), author, title and page of a row, from the columns of the input.

    Of several licences, the row has the strictest.
    """
    columns = [(name.lower().replace("_", ""), value) for name, value in json.loads(row["extra"] or "{}").items()]
    facts: dict[str, str | None] = {}
    for fact, names in COLUMNS.items():
        values = [value for wanted in names for name, value in columns if name == wanted and value is not None]
        texts = [str(value) for value in values if fact == "license" or isinstance(value, str)]
        texts = [text for text in texts if any(map(str.isalnum, text))]
        facts[fact] = max(texts, key=strictness if fact == "license" else bool, default=None)
    name = license_name(facts["license"]) if facts["license"] else None
    return {**facts, "license_name": name, "url": row["url"]}


def strictness(license: str) -> int:
    """Return 2 for a licence that is not open or in unknown words, 1 for an open one, 0 for a mere number."""
    if OPEN.fullmatch(license_name(license) or ""):
        return 1
    return 2 * any(map(str.isalpha, license))


class Permits:
    """Decides which rows may be published, and counts them: open licences, and those that the user has named."""

    def __init__(self, named: Collection[str]) -> None:
        self.named = {license_name(text) or text.strip().lower() for text in named}
        self.is_any = ANY in self.named
        self.published, self.refused, self.credited = Counter[str](), Counter[str](), Counter[str]()

    def refuses(self, facts: Mapping[str, str | None], counted: bool = True) -> bool:
        """Return True for a row that may not be published; `counted`: it is a picture, and not a row without one."""
        text, name = facts["license"], facts["license_name"]
        known = name or (text or NONE).strip().lower()
        is_named = self.is_any or not self.named.isdisjoint({known, re.sub(r"-\d\.\d$", "", known)})
        lacks_source = "by" in known.split("-") and not any(facts[fact] for fact in ("url", "page", "author"))
        is_open = is_named or (name is not None and OPEN.fullmatch(name) is not None and not lacks_source)
        if counted and is_open:
            self.published[known] += 1
            self.credited.update(fact for fact in ("author", "title", "page") if facts[fact])
        elif counted:
            terms = {*(name or "").split("-")}
            reason = "no licence" if not text else "unknown licence" if not name else "no source"
            reason = "no derivatives" if "nd" in terms else reason
            self.refused["non-commercial" if "nc" in terms else reason] += 1
        return not is_open

    def describe(self) -> str:
        """Return the numbers of the pictures that are left out, by reason."""
        return ", ".join(f"{n} {reason}" for reason, n in self.refused.most_common())
