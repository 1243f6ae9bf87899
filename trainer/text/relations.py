"""Dependency labels of spaCy's English models (ClearNLP's), in the order of their numbers in a batch."""

from typing import Final

RELATIONS: Final = (
    "other",  # any label that is not listed
    *("ROOT", "acl", "acomp", "advcl", "advmod", "agent", "amod", "appos", "attr", "aux", "auxpass", "case", "cc"),
    *(
        "ccomp",
        "compound",
        "conj",
        "csubj",
        "csubjpass",
        "dative",
        "dep",
        "det",
        "dobj",
        "expl",
        "intj",
        "mark",
        "meta",
    ),
    *("neg", "nmod", "npadvmod", "nsubj", "nsubjpass", "nummod", "oprd", "parataxis", "pcomp", "pobj", "poss"),
    *("preconj", "predet", "prep", "prt", "punct", "quantmod", "relcl", "xcomp"),
)
