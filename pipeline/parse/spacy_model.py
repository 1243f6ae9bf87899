"""Load the spaCy pipeline that `parse.model` names."""

from pathlib import Path
from typing import Final

import spacy
from spacy.language import Language

from common.errors import UserError
from common.files import check_folder_files
from common.text import one_line
from pipeline.parse.package import is_installed, spacy_package

UNUSED: Final = ["ner", "senter", "entity_linker", "entity_ruler", "textcat", "textcat_multilabel"]
"""Components that no column of the PARSED schema needs."""


def load_spacy(name: str) -> Language:
    """Load a spaCy pipeline, by package name or folder, without its UNUSED components.

    Raises UserError if it is not installed, cannot be loaded, or has no dependency parser.
    """
    package = spacy_package(name)
    if not is_installed(package) and not Path(package).is_dir():
        raise UserError(f"parse.model={name!r} is neither an installed spaCy model nor a folder; pip install {package}")
    try:
        check_folder_files(package)
        _use_gpu_for_transformer(package)
        nlp = spacy.load(package, exclude=UNUSED)
    except Exception as error:  # its type depends on the file that is damaged
        raise UserError(f"parse.model={name!r} cannot be loaded by spaCy: {one_line(error)}") from error
    if "parser" not in nlp.pipe_names:
        raise UserError(
            f"parse.model={name!r} has no dependency parser; choose a model with one (its components: {nlp.pipe_names})"
        )
    if nlp.vocab.get_noun_chunks is None:
        raise UserError(f"parse.model={name!r}: spaCy has no noun chunks for the language {nlp.lang!r}; choose another")
    return nlp


def _use_gpu_for_transformer(package: str) -> None:
    """Run a pipeline with a transformer on the GPU, if there is one and CuPy is installed; others stay on the CPU."""
    folder = Path(package) if Path(package).is_dir() else spacy.util.get_package_path(package)
    for path in (folder, *sorted(folder.glob(f"{folder.name}-*"))):
        if (path / "config.cfg").is_file():
            names = spacy.util.load_config(path / "config.cfg")["nlp"]["pipeline"]
            if any("transformer" in name for name in names):
                spacy.prefer_gpu()
