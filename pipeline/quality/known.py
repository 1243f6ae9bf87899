"""The known boxes of an output's images, and the phrases that refer to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from common.errors import UserError
from pipeline.quality.boxes import Corners, FoundRow

Words = frozenset[str]


@dataclass(frozen=True, kw_only=True)
class KnownObject:
    """A true box. A phrase refers to it if it covers `span` or contains one of `names`; both None or empty: any phrase.

    A crowd is a region with many objects: boxes in it are neither right nor wrong.
    """

    corners: Corners
    span: tuple[int, int] | None = None
    names: tuple[str, ...] = ()
    is_crowd: bool = False


@dataclass(frozen=True, kw_only=True)
class Known:
    """The true boxes of the images by row id, file name, or file name without extension.

    `shadowed` names belong to a second image too and are compared with row ids only; `ambiguous` ones are left out.
    """

    source: str
    images: Mapping[str, Sequence[KnownObject]]
    captions: Mapping[str, str]
    categories: frozenset[str] = frozenset()  # names of COCO's categories
    shadowed: frozenset[str] = frozenset()
    ambiguous: frozenset[str] = frozenset()

    def of(self, row: FoundRow) -> Sequence[KnownObject] | None:
        """Return the true boxes of a row; None if the file has no such image."""
        for name in names_of(row):
            if name in self.images and (name == row.id or name not in self.shadowed):
                expected = self.captions.get(name)
                if expected is not None and expected != row.caption:
                    raise UserError(
                        f"{self.source}: the caption of image {name!r} is {expected[:80]!r}, but the output has "
                        f"{row.caption[:80]!r}; give the known boxes of this output"
                    )
                return self.images[name]
        return None

    def warnings(self) -> list[str]:
        """Return a line for each kind of names that belong to several images."""
        return [
            f"{self.source}: {len(names)} names belong to several images and {use}: {', '.join(sorted(names)[:5])[:200]}"
            for names, use in (
                (self.shadowed, "are compared with the rows' `id` only"),
                (self.ambiguous, "find none of them; set the rows' `id` to the id of the image"),
            )
            if names
        ]


def names_of(row: FoundRow) -> list[str]:
    """Return the names by which a row is found: its id, then the file name of its URL with and without extension."""
    path = PurePosixPath(urlsplit(row.url).path) if row.url else None
    names = [row.id, *([path.name, path.stem] if path else [])]
    return [name for name in names if name]


def refers(row: FoundRow, span: tuple[int, int], known: KnownObject) -> bool:
    """True if the phrase [start, end) of a row refers to a known object."""
    if known.span is not None:
        return span[0] < known.span[1] and known.span[0] < span[1]
    return not known.names or any(contains(row.caption[span[0] : span[1]], name) for name in known.names)


def contains(phrase: str, name: str) -> bool:
    """True if a name, or its plural in "s" or "es", occurs in a phrase as whole words."""
    words = words_of(phrase)
    return any(form in words for form in forms_of(name))


@cache
def words_of(phrase: str) -> str:
    """Return the words of a phrase in lower case, each between spaces. Each of 26 thresholds asks for each phrase."""
    return f" {' '.join(''.join(c if c.isalnum() else ' ' for c in phrase.lower()).split())} "


@cache
def forms_of(name: str) -> tuple[str, ...]:
    """Return the singular and the plurals of a name between spaces."""
    name = name.lower().strip()
    plural = f"{name[:-1]}ies" if name.endswith("y") else name
    return tuple(f" {form} " for form in (name, f"{name}s", f"{name}es", plural))
