"""Decide whether a noun phrase names something that can be seen: a small linear model over WordNet and the context.

No feature is a word of an open class, so that the model knows nothing of single nouns but the classes of their senses.
web/visible.json has its weights, which `pipeline.stages.parse.recipe` fits to labelled texts.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from pipeline.stages.parse import lexicon
from pipeline.stages.parse.chunks import DEPICTIONS, POSITIONS, NounPhrase, Scene
from pipeline.stages.parse.labels import NOUNS, singular
from pipeline.stages.parse.normalise import SMALL_WORDS

WEIGHTS: Final = Path(__file__).with_name("web") / "visible.json"
UNKNOWN: Final = 0.6
"""Share of visible senses of a noun that WordNet does not have: most are names of things or people."""
ARTICLES: Final = frozenset({"a", "an", "the", "is", "are", "his", "her", "their"})
"""Words that tell a caption from a title."""
COUNTED: Final = frozenset({"a", "an", "two", "three", "several"})
"""Words before things, rather than what is done with them: "a basketball"."""


@cache
def weights() -> Mapping[str, float]:
    """Return the weight of each feature."""
    found: dict[str, float] = json.loads(WEIGHTS.read_text(encoding="utf-8"))
    return found


def score(scene: Scene, phrase: NounPhrase) -> float:
    """Return the log odds that a phrase names something that can be seen."""
    known = weights()
    return sum(value * known.get(name, 0.0) for name, value in features(scene, phrase).items() if value)


def _governors(scene: Scene, node: int) -> tuple[str, str]:
    """Return the preposition or the label that a noun, or the list in which it is, depends on, and that of its clause."""
    tokens = scene.tokens
    while tokens[node].dep in ("conj", "appos") and tokens[node].head != node:
        node = tokens[node].head
    under = scene.words[tokens[node].head] if tokens[node].dep == "pobj" else tokens[node].dep
    while tokens[node].pos != "VERB" and tokens[node].head != node:
        node = tokens[node].head
    return under, f"{tokens[node].dep} {tokens[node].tag}" if tokens[node].pos == "VERB" else ""


def features(scene: Scene, phrase: NounPhrase) -> dict[str, float]:
    """Return what the model of visibility reads of a phrase: name of a feature -> its value. A missing one is 0."""
    text, words, tokens, segment_of, segments = scene
    first, end, root, top = phrase
    segment, head, tag = segment_of[root], singular(tokens[root]), tokens[root].tag
    noun, n = head, len(words)
    for start in range(max(first, root - 1), root):  # the compound that WordNet has
        if "_".join([*words[start:root], head]) in lexicon.words():
            noun = "_".join([*words[start:root], head])
    classes, share = lexicon.shares(noun), lexicon.visible(noun)

    def near(i: int) -> str:
        """The word of a closed class at a place, or its part of speech."""
        if not 0 <= i < n or segment_of[i] != segment:
            return "^" if i < first else "$"
        return words[i] if words[i] in SMALL_WORDS or words[i] in (",", "of") else tokens[i].pos

    under, clause = _governors(scene, top)
    is_clean = (
        len(segments) == 1
        and segments[0].case is None
        and (text[-1] in ".!?" or any(word in ARTICLES for word in words))
    )
    found: dict[str, float] = {f"class={name}": value for name, value in classes.items()}
    found |= {
        "bias": 1.0,
        "share": UNKNOWN if share is None else share,
        "unknown": share is None,
        "a thing": words[first] in COUNTED and any(lexicon.VISIBLE.get(name, 0) >= 0.9 for name in classes),
        "share<.2": share is not None and share < 0.2,
        "share<.5": share is not None and 0.2 <= share < 0.5,
        f"before={near(first - 1)}": 1.0,
        f"after={near(end)}": 1.0,
        f"first={near(first)}": 1.0,
        f"tag={tag}": 1.0,
        f"dep={tokens[root].dep}": 1.0,
        f"parent={tokens[tokens[top].head].pos if tokens[top].head != top else 'ROOT'}": 1.0,
        f"under={under}": 1.0,
        f"clause={clause}": 1.0,
        f"under={under}, clause={clause}": 1.0,
        f"segment={min(segment, 2)}": 1.0,
        "whole last segment": segment == len(segments) - 1 > 0
        and end - first == len(segments[segment].tokens)
        and not text[: tokens[first].start].endswith(", "),
        "last segment": segment == len(segments) - 1 and segment > 0,
        "whole segment": end - first == len(segments[segment].tokens),
        "one word": end - first == 1,
        "digit": any(map(str.isdigit, text[tokens[first].start : tokens[end - 1].end])),
        "title": segments[segment].case == "title",
        "capitals": segments[segment].case == "capitals",
        "place": lexicon.is_place(words[root]) and tag.startswith("NNP"),
        "animate": lexicon.is_animate(head),
        "name": tokens[root].pos == "PROPN" and not lexicon.is_known(words[root]),
        "collective": top != root,
        "adjective": tokens[root].pos == "ADJ",
        "no noun": all(tokens[i].pos not in NOUNS for i in range(first, end)),
        "depiction": head in DEPICTIONS,
        "depiction of": head in DEPICTIONS and near(end) == "of",
        "position": head in POSITIONS,
        f"before head={tokens[root - 1].pos if root > first else ''}": 1.0,
        "clean": is_clean,
        "clean, share<.2": is_clean and share is not None and share < 0.2,
        "clean, share<.5": is_clean and share is not None and 0.2 <= share < 0.5,
        "sentence": any(tokens[i].tag in ("VBZ", "VBP") for i in segments[segment].tokens),
    }
    return found
