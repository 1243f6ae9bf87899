"""Dependency labels of spaCy's English models (ClearNLP's), in the order of their ids in a batch."""

from typing import Final

# fmt: off
RELATIONS: Final = (
    "other",  # any label that is not in this list
    "ROOT", "acl", "acomp", "advcl", "advmod", "agent", "amod", "appos", "attr", "aux", "auxpass",
    "case", "cc", "ccomp", "compound", "conj", "csubj", "csubjpass", "dative", "dep", "det", "dobj",
    "expl", "intj", "mark", "meta", "neg", "nmod", "npadvmod", "nsubj", "nsubjpass", "nummod", "oprd",
    "parataxis", "pcomp", "pobj", "poss", "preconj", "predet", "prep", "prt", "punct", "quantmod",
    "relcl", "xcomp",
)
# fmt: on
