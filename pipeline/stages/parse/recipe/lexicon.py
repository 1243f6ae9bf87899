"""Make web/words.txt.gz from WordNet 3.0 (the folder with index.noun and data.noun; Debian's package wordnet-base)."""

import gzip
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from pipeline.stages.parse.lexicon import CLASSES, CODES

LEAST = 0.08
"""Share of the senses of a noun below which a class is left out."""


def lines(path: Path) -> Iterator[list[str]]:
    """Yield the fields of the entries of a WordNet file, without the licence at its head and the glosses."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("  "):
            yield line.split(" | ")[0].split()


def frequencies(folder: Path) -> Counter[tuple[str, int]]:
    """Return the number of occurrences of each (noun, sense number) in WordNet's texts."""
    found = Counter[tuple[str, int]]()
    for key, sense, n in lines(folder / "cntlist.rev"):
        word, _, rest = key.partition("%")
        if rest[0] == "1":
            found[word, int(sense)] = int(n)
    return found


def build(folder: Path) -> dict[str, str]:
    """Return the codes of all words with at most one underscore (lexicon.py)."""
    class_of, is_instance = dict[str, str](), set[str]()
    written, places = dict[str, set[bool]](), set[str]()  # word -> whether it is in lower case, in each of its forms
    for part in ("noun", "verb", "adj", "adv"):
        for fields in lines(folder / f"data.{part}"):
            n = int(fields[3], 16)
            forms = [form.split("(")[0] for form in fields[4 : 4 + 2 * n : 2]]
            if part == "noun":
                class_of[fields[0]] = CLASSES[int(fields[1]) - 3]
                if "@i" in fields[5 + 2 * n :: 4]:
                    is_instance.add(fields[0])
                    places.update(form.lower() for form in forms if class_of[fields[0]] == "location")
            for form in forms:
                written.setdefault(form.lower(), set()).add(form.islower())
    count, codes = frequencies(folder), dict[str, str]()
    for fields in lines(folder / "index.noun"):
        noun, senses = fields[0], defaultdict[str, float](float)
        for rank, synset in enumerate(fields[6 + int(fields[3]) :], 1):
            weight = count[noun, rank] + 1 / rank
            senses[class_of[synset]] += weight * (0.1 if synset in is_instance and int(fields[2]) > 1 else 1)
        total = sum(senses.values())
        parts = [
            (name, n / total) for name, n in sorted(senses.items(), key=lambda item: -item[1]) if n / total > LEAST
        ]
        codes[noun] = "".join(f"{CODES[name]}{min(max(round(10 * share), 1), 9)}" for name, share in parts)
    verbs = {fields[0] for fields in lines(folder / "index.verb")}
    return {
        word: codes.get(word, "") + "V" * (word in verbs) + "N" * (True not in forms) + "P" * (word in places)
        for word, forms in sorted(written.items())
        if word.count("_") <= 1 and "\t" not in word
    }


def write(folder: Path, path: Path) -> int:
    """Write the file; return the number of its words. It has no time stamp, so that its bytes depend on WordNet alone."""
    found = build(folder)
    text = "".join(f"{word}\t{codes}\n" for word, codes in found.items())
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    return len(found)
