"""Decide which noun phrases are grounded, and expand them to referring expressions.

Follows GRIT (Kosmos-2, arXiv 2306.14824, section 2.1) and HyCoCLIP (appendix A): nouns that name nothing visible are
removed, and each remaining noun phrase is expanded along the dependency tree. docs/phrases.md explains the differences.
"""

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from pipeline.stages.captions import GivenBox, Span, place_spans
from pipeline.stages.parse import visible
from pipeline.stages.parse.chunks import (
    DEPICTIONS,
    INCH,
    LATIN,
    LETTER,
    PICTURES,
    POSITIONS,
    SHOWING,
    NounPhrase,
    Scene,
    can_be_noun,
    merge_collectives,
    repair,
    trim,
)
from pipeline.stages.parse.config import ParseConfig, Rules
from pipeline.stages.parse.labels import NOUNS, singular
from pipeline.stages.parse.lexicon import is_abstract, is_animate, is_known, is_present_participle, listed, shares
from pipeline.stages.parse.normalise import NEGATED, Hidden
from pipeline.stages.parse.types import Chunk, RefExp, Token, maximal
from schemas.status import given_code

CONJUNCTS: Final = frozenset({"conj", "cc"})
"""Dependency labels that an expression of GRIT does not extend across."""
SUBJECTS: Final = frozenset({"nsubj", "nsubjpass", "nsubj:pass", "expl"})
"""Labels of a subject. A conjunct with a subject of its own begins another clause."""
EDGE_MARKS: Final = frozenset({"PUNCT", "SPACE", "CCONJ", "ADP"})
"""Parts of speech that are removed from the ends of an expression."""
STRANDED: Final = frozenset({"DET", "ADJ", "VERB", "AUX", "PRON", "NUM", "PART"})
"""Parts of speech that end no expression if the words behind it are hidden: "a woman with a" (@handle)."""
GRIT_NOUNS: Final = listed("grit_nouns")
"""The nouns that GRIT removes, as its author lists them (github.com/microsoft/unilm, issue 1421)."""
ABSENT: Final = re.compile(
    r"\b(?:without|sans|w/o|no|no longer|neither|nor|(?:not|never)(?: in| on| with| wearing)?|minus|lack(?:s|ed|ing)?"
    r"|free from|with out|as opposed to|(?:free|instead|devoid|void|bare|bereft|empty|rid|lack|absent|absence|(?:no|any) (?:signs?|traces?)"
    r"|in (?:place|lieu)) of|rather than)(?: even)?(?: (?:an?|any|the|his|her|its|their))?$"
)
"""Text before a thing that is absent."""
ABSENT_PHRASE: Final = re.compile(
    r"(?:no|not|zero|neither|nor|never|hardly|none)\b(?![-.]| (?:only|just|merely|simply|(?:more|less|fewer) than|name|gravity"
    r"|bake|churn|cook|knead|sew|show|slip)\b)(?!.*\b(?:sign|symbol|icon)s?(?! of\b))"
)
"""Phrase of what is absent, but not "not only a dog", "no-bake cake" and "no parking sign"; "no sign of people" is one."""
NEGATIONS: Final = frozenset({"not", "n't", "n’t", "never", "no", "neither", "nobody", "none", "cannot", *NEGATED})
PRESENT: Final = frozenset({"here", "there", "present", "visible", "around", "left", "sight"})
"""Words of what is denied by "none of the guests are here", while "none of the cars are red" has cars."""
HAVING: Final = listed("having")
"""Words that negate a clause, and its verbs whose object is then absent: "does not have a roof"."""
MODIFIERS: Final = frozenset({"det", "poss", "amod", "compound", "nummod"})
HANGING: Final = listed("hanging")
SURFACES: Final = listed("surfaces")
"""Words for pictures that are things, and where these are."""
DIRECTIONS: Final = frozenset({"left", "right", "background", "foreground", "distance"})
SIDES: Final = frozenset({"upper", "lower", "left", "right", "far", "top", "bottom"})
"""Words for places in the picture, and in front of them."""
PREPOSITIONS: Final = (["front"], ["top"], ["back"])
"""Words between "in" or "on" and "of" that form one preposition with these."""
CLAUSES: Final = frozenset({"acl", "relcl", "advcl", "prep", "amod", "agent"})
"""Labels of a description after a comma."""
VIEWPOINTS: Final = frozenset({"from", "through"})
"""Words between a view of something and where that is seen from."""
RELATIVES: Final = frozenset({"that", "which", "who", "where", "whose", "as", "while", "when"})
QUOTING: Final = re.compile(
    r"\b(?:says?|saying|said|reads?|reading|words?|text|quote|slogan|titled|entitled|labell?ed|inscribed|inscription"
    r"|lettering|message|phrase)[\s,:]*$"
)
"""Text before a quotation of what is written somewhere."""
ALPHANUMERIC: Final = re.compile(r"[^\W_]")
WORD: Final = re.compile(r"\w+|[^\w\s]")
"""Words and marks of a caption without a parse."""


@dataclass(frozen=True, kw_only=True)
class PhraseRules:
    """Rules that decide which noun phrases are kept, and how far their expressions go.

    Phrases whose head is one of `abstract` are removed, those of `keep` are kept. Without `is_english`, the rules with English
    words do not apply.
    """

    rules: Rules
    abstract: frozenset[str]
    keep: frozenset[str]
    least: float
    """Log odds of being visible below which a phrase is removed."""
    is_english: bool = True

    @classmethod
    def from_config(cls, config: ParseConfig, rules: Rules, is_english: bool = True) -> "PhraseRules":
        """Combine the rules with the words of `config`."""
        p = config.min_visible
        return cls(
            rules=rules,
            abstract=frozenset(word.lower() for word in config.extra_abstract)
            | (frozenset() if rules.remove_invisible else GRIT_NOUNS),
            keep=frozenset(word.lower() for word in config.keep),
            least=math.log(p / (1 - p)) if 0 < p < 1 else math.copysign(math.inf, p - 0.5),
            is_english=is_english,
        )

    def chunks(
        self, scene: Scene, phrases: Sequence[NounPhrase], hidden: Collection[Hidden]
    ) -> tuple[list[Chunk], list[NounPhrase]]:
        """Return the noun chunks with the reasons of those that are removed, and their phrases, in order."""
        found = self.repaired(scene, phrases)
        removed = {phrase: self.removal(scene, phrase) for phrase in found}
        for first, end, reason in hidden:
            root = next((i for i in reversed(range(first, end)) if ALPHANUMERIC.search(scene.words[i])), end - 1)
            removed[NounPhrase(first, end, root, root)] = reason
        chunks, is_latin = list[Chunk](), self.is_english and self.rules.normalise
        for phrase in sorted(removed):
            start, end = self.span(scene, phrase)
            n = len(LETTER.findall(scene.text, start, end))
            is_foreign = is_latin and 2 * len(LATIN.findall(scene.text, start, end)) < n
            chunks.append(Chunk(start, end, phrase.root, "no_letter" if is_foreign or not n else removed[phrase]))
        return chunks, sorted(removed)

    def repaired(self, scene: Scene, phrases: Sequence[NounPhrase]) -> list[NounPhrase]:
        """Apply the rules for the ends of phrases."""
        if self.is_english and self.rules.repair:
            phrases = repair(scene, phrases)
        if self.is_english and self.rules.merge_collectives:
            phrases = merge_collectives(scene.words, scene.tokens, phrases)
        return list(phrases)

    def span(self, scene: Scene, phrase: NounPhrase) -> tuple[int, int]:
        """Return the characters of a phrase."""
        if self.rules.normalise:
            return trim(scene.text, scene.tokens, phrase)
        return scene.tokens[phrase.first].start, scene.tokens[phrase.end - 1].end

    def removal(self, scene: Scene, phrase: NounPhrase) -> str | None:
        """Return why a noun phrase is removed (schemas.status.PHRASE_REMOVALS), or None if it is grounded."""
        tokens, (first, end, root, top) = scene.tokens, phrase
        is_other = tokens[root].pos != "ADJ" and not (
            tokens[root].pos == "VERB" and can_be_noun(scene.words[root], tokens[root])
        )
        if is_other and all(token.pos not in NOUNS for token in tokens[first:end]):
            return "pronoun"
        is_filtered = self.is_english and self.rules.remove_invisible
        if is_filtered and is_absent(scene, phrase):
            return "absent"
        if is_filtered and quotation(scene.text, tokens[root].start):
            return "invisible"
        head = singular(tokens[root])
        names = {tokens[root].lemma.lower(), head}
        if names & self.keep:
            return None
        if names & self.abstract:
            return "abstract"
        if not is_filtered:
            return None
        if head in DEPICTIONS and is_hung(scene, phrase):
            return None
        is_picture = head in PICTURES and tokens[root].dep not in ("dobj", "pobj", "conj")
        if end - first == 1 and is_idiom(scene, first):
            return "invisible"
        is_close_up = scene.words[end - 1 : end + 2] == ["close", "up", "of"]
        if is_close_up or (is_picture and SHOWING.intersection(scene.words[end : end + 1])):
            return "invisible"
        if is_position(scene, phrase, head) or (is_abstract(head) and root == top):
            return "invisible"
        return "invisible" if visible.score(scene, phrase) < self.least else None

    def expressions(self, scene: Scene, chunks: Sequence[Chunk], phrases: Sequence[NounPhrase]) -> list[RefExp]:
        """Return the referring expression of each noun phrase that is not removed.

        The expression is the phrase together with the adjacent tokens after it that descend from its top in the dependency
        tree, without punctuation at its end. Conjuncts (`conj`, `cc`) are not followed in GRIT's form. Otherwise those
        of its descendants are followed if they describe the head (`_describes`), and it ends where `_stop` says.
        """
        expander = Expander(scene, chunks, phrases, self.rules.describe, self.is_english)
        found: list[tuple[int, int, int]] = []
        for number, (chunk, phrase) in enumerate(zip(chunks, phrases, strict=True)):
            if chunk.removed is None:
                end = expander.end(phrase)
                found.append((number, chunk.start, chunk.end if end <= phrase.end else scene.tokens[end - 1].end))
        return mark_maximal(found)


def is_absent(scene: Scene, phrase: NounPhrase) -> bool:
    """True if a phrase names what is not in the picture: "no hat", "without a hat, coat or gloves", "not wearing a hat"."""
    words, tokens = scene.words, scene.tokens
    i, end, root, top = phrase
    has_and = has_comma = False
    if words[i] == "any" and NEGATIONS.intersection(words[:i]):
        return True
    while words[i] not in ("only", "just"):
        is_part = words[i + 1 : i + 2] == ["of"] and tokens[top].dep in SUBJECTS
        is_part = is_part and PRESENT.isdisjoint(words[tokens[top].head + 1 : tokens[top].head + 3])
        if not is_part and ABSENT_PHRASE.match(" ".join(words[i : end + 1]).lstrip("\"' ").replace(" - ", "-")):
            return has_comma or not has_and  # "no people and mountains" has mountains, "no hats, coats and gloves" none
        before = words[i - 1 : i]  # nothing at the first word
        is_missing = ["missing"] in (words[root - 1 : root], before if tokens[i].dep in ("det", "poss") else [])
        if is_missing or ABSENT.search(" ".join(words[max(i - 5, 0) : i])) or is_denied(scene, i, top):
            return True
        link, head = "".join(before), tokens[root].head
        if link == ",":  # a list, if a conjunction ends it
            items = [root]
            items += (j for j in range(root + 1, len(tokens)) if tokens[j].dep == "conj" and tokens[j].head in items)
            marks = (j for j in range(root, items[-1]) if tokens[j].dep == "cc" and tokens[j].head in items)
            link = next((words[j] for j in marks), "")
        is_and = link in ("and", "&") and tokens[i].dep not in ("det", "poss")
        has_comma = has_comma or "," in words[max(head, 0) : i]
        n_words = 2 if words[max(i - 2, 0) : i] == ["such", "as"] else int(before in (["like"], ["including"]))
        if n_words:  # an example of what is absent
            head, is_and = i - n_words - 1, False
            head -= head >= 0 and words[head] == ","
            if head < 0 or tokens[head].pos not in NOUNS:
                break
        elif tokens[root].dep != "conj" or head >= i or not (is_and or link in ("or", "nor")):
            break
        i, end, root, top, has_and = head, head + 1, head, head, has_and or is_and
        while i > 0 and tokens[i - 1].head == root and tokens[i - 1].dep in MODIFIERS and words[i - 1] != "lacking":
            i -= 1
    return False


def is_denied(scene: Scene, first: int, top: int) -> bool:
    """True for the object of a verb that is negated: "isn't a dog", "not wearing a hat", "nobody wears a hat"."""
    words, tokens = scene.words, scene.tokens
    verb = tokens[top].head
    if verb >= first:
        return False
    verbs = {verb, tokens[verb].head if tokens[verb].dep == "xcomp" else verb}  # "does not seem to have a bed"
    is_complement = tokens[top].dep == "attr"
    if not (is_complement or tokens[verb].lemma in HAVING):
        return False
    for i in range(first):
        if tokens[i].head not in verbs or words[i + 1] in ("only", "just"):
            continue
        is_negation = words[i] in NEGATIONS or words[max(i - 1, 0)] == "no"
        if is_negation and (tokens[verb].lemma in HAVING or (is_complement and tokens[i].dep == "neg")):
            return True
    return False


def quotation(text: str, start: int) -> int:
    """Return the end of the quotation of something written that a place is in, 0 for none: 'a mug that says "Dad"'."""
    for opening, closing in (('"', '"'), ("“", "”")):
        at = text.rfind(opening, 0, start)
        is_open = at >= 0 and (
            text.count('"', 0, start) % 2 if opening == closing else text.find(closing, at, start) < 0
        )
        if is_open and QUOTING.search(text[:at].lower()):
            return text.find(closing, start) + 1
    return 0


def is_hung(scene: Scene, phrase: NounPhrase) -> bool:
    """True if the phrase of a picture names a thing within this one: "a framed photo", "drawings on a fridge"."""
    words, end = scene.words, phrase.end
    is_on = any(
        words[i] == "on" and SURFACES.intersection(words[i + 1 : i + 4]) for i in range(end, min(end + 3, len(words)))
    )
    return is_on or "framed" in words[phrase.first : end] or bool(HANGING.intersection(words[end : end + 10]))


def is_idiom(scene: Scene, i: int) -> bool:
    """True for a bare noun that a preposition joins with itself: "hand in hand"."""
    words, tokens = scene.words, scene.tokens
    return any(words[a : a + 3 : 2] == [words[i]] * 2 and tokens[a + 1].pos == "ADP" for a in (i, i - 2) if a >= 0)


def is_position(scene: Scene, phrase: NounPhrase, head: str) -> bool:
    """True if a phrase names a place in the picture: "the left", "the upper left corner", but not "the left side of a boat"."""
    words, (first, end, root, _) = scene.words, phrase
    has_side = any(word in SIDES for word in words[first:root])
    is_part = words[end : end + 1] == ["of"]
    if is_part and words[first:end] in PREPOSITIONS and first > 0 and words[first - 1] in ("in", "on"):
        return True
    return head in DIRECTIONS or (head in POSITIONS and has_side and not is_part)


class Expander:
    """Finds the ends of the expressions of a caption. `describes`: with the rules beyond GRIT's."""

    def __init__(
        self, scene: Scene, chunks: Sequence[Chunk], phrases: Sequence[NounPhrase], describes: bool, is_english: bool
    ) -> None:
        self.scene, self.describes, self.is_english = scene, describes, is_english
        self.starting = {phrase.first: (phrase, chunk) for phrase, chunk in zip(phrases, chunks, strict=True)}
        self.ending = {phrase.end: phrase.first for phrase in phrases}
        self.children: list[list[int]] = [[] for _ in scene.tokens]
        for index, token in enumerate(scene.tokens):
            if token.head != index:
                self.children[token.head].append(index)

    def end(self, phrase: NounPhrase) -> int:
        """Return the end of the tokens of the expression of a phrase."""
        tokens, segment_of = self.scene.tokens, self.scene.segment_of
        after = tokens[phrase.end] if self.describes and tokens[phrase.root].head == phrase.end else None
        if after and after.pos in NOUNS and singular(after) not in DEPICTIONS:
            return phrase.end  # of the visible part of a compound
        inside = self._descendants(phrase)
        high = end = phrase.end
        while end < len(tokens):
            if end in inside:
                high = end + 1
            elif self.describes and tokens[end].dep == "cc" and end + 1 in inside and self._is_worn(phrase, end + 1):
                pass  # "in a hat and a coat", if the coat hangs from the person
            elif segment_of[end] == segment_of[phrase.root]:
                break  # the rest is a gap, such as a part in brackets
            end += 1
        if self.describes:
            high = self._with_state(self._stop(phrase, high))
        is_cut = high < len(tokens) and segment_of[high] == -1 and ALPHANUMERIC.search(self.scene.words[high])
        while high > phrase.end and (self._is_edge_mark(high - 1) or (is_cut and tokens[high - 1].pos in STRANDED)):
            high -= 1
        return high

    def _descendants(self, phrase: NounPhrase) -> set[int]:
        tokens, words, children = self.scene.tokens, self.scene.words, self.children
        first, end, root, top = phrase
        inside, pending = {*range(first, end), top}, [top]
        if self.describes:
            pending += [i for i in range(first, end) if i != top]  # of a word that the parser did not take for the head
            of = tokens[root].head
            if words[of] == "of" and of == first - 1 and singular(tokens[tokens[of].head]) in PICTURES:
                more = [i for i in children[tokens[of].head] if i >= end and tokens[i].dep in CLAUSES]
                pending += (more := [i for i in more if words[i] not in VIEWPOINTS])
                inside.update(more)
            if self._is_participle(verb := tokens[top].head) and top < verb and tokens[top].dep in (*SUBJECTS, "dobj"):
                pending.append(verb)  # "boat docked at a pier", of which the parser made a sentence
                inside.add(verb)
            if rest := self._divided(phrase):
                pending += [end, rest.root]  # "girl holding balloon", which the parser took for a compound
                inside.update(range(end, rest.end))
        while pending:
            node = pending.pop()
            followed = [child for child in children[node] if tokens[child].dep not in CONJUNCTS]
            if self.describes:
                describes = self._describes_head if first <= node < end or node == top else self._describes
                conjuncts = [c for c in children[node] if tokens[c].dep == "conj" and describes(c)]
                # A conjunction is a child of the word before it, or of the conjunct (Universal Dependencies).
                last = max(conjuncts, default=node if tokens[node].dep == "conj" else -1)
                followed += conjuncts
                followed += [child for child in children[node] if tokens[child].dep == "cc" and child < last]
            followed = [child for child in followed if child not in inside]
            if self.describes and node == top:
                followed = [child for child in followed if not self._is_wearers(node, child)]
                if self._is_view_of(root):
                    followed = [child for child in followed if words[child] not in VIEWPOINTS]
            inside.update(followed)
            pending += followed
        return inside

    def _is_view_of(self, noun: int) -> bool:
        """True for a thing, or one of a list, that the caption calls a view of it: "view of the lake and a pier from a hill"."""
        tokens, first = self.scene.tokens, noun
        while tokens[first].dep == "conj" and tokens[first].head < first:
            first = tokens[first].head
        of = tokens[first].head
        view = tokens[of].head if self.scene.words[of] == "of" else first
        return view != noun and singular(tokens[view]) in ("view", "shot")

    def _is_participle(self, verb: int) -> bool:
        """True for a participle of a clause of its own: without an auxiliary, apart from that of "cheese being cut"."""
        tokens, words = self.scene.tokens, self.scene.words
        labels = {tokens[child].dep for child in self.children[verb] if words[child] != "being"}
        is_past = tokens[verb].tag == "VBD" and not labels & {"dobj", "ccomp", "xcomp"}
        is_present = tokens[verb].tag in ("VBG", "NN") and is_present_participle(words[verb])
        return (
            (tokens[verb].head == verb or (tokens[verb].dep == "advcl" and not is_past))
            and not labels & {"aux", "auxpass"}
            and (is_present or tokens[verb].tag == "VBN" or is_past)
        )

    def _divided(self, phrase: NounPhrase) -> NounPhrase | None:
        """Return what is behind the participle after someone, if the parser took the three for a compound."""
        tokens, (_, end, root, _) = self.scene.tokens, phrase
        if end + 1 not in self.starting or not is_present_participle(self.scene.words[end]):
            return None
        rest = self.starting[end + 1][0]
        return rest if self._is_animate(tokens[root]) and rest.root in (tokens[root].head, tokens[end].head) else None

    def _is_wearers(self, noun: int, child: int) -> bool:
        """True for a participle that belongs to the one who has the thing: "toddler in tutu jumping in a puddle"."""
        tokens = self.scene.tokens
        owner = tokens[tokens[noun].head].head
        is_worn = tokens[noun].dep == "pobj" and self.scene.words[tokens[noun].head] in ("with", "in", "wearing")
        return (
            tokens[child].tag == "VBG"
            and is_worn
            and self._is_animate(tokens[owner])
            and not self._is_animate(tokens[noun])
        )

    def _is_worn(self, phrase: NounPhrase, start: int) -> bool:
        """True if the next word that hangs from the phrase, behind a conjunction, is no person or animal."""
        tokens = self.scene.tokens
        hung = (i for i in range(start, len(tokens)) if tokens[i].head in (phrase.root, phrase.top))
        return not self._is_animate(tokens[next(hung, start)])

    def _describes(self, conjunct: int) -> bool:
        """True if a conjunct inside an expression describes its head noun.

        Someone after "and" rarely describes it after a thing: "a dog with a ball and a cat". A conjunct with a subject of
        its own begins another clause.
        """
        tokens = self.scene.tokens
        token = tokens[conjunct]
        if any(tokens[child].dep in SUBJECTS for child in self.children[conjunct]):
            return False
        is_someone = token.pos in NOUNS and self._is_animate(token)
        return not is_someone or self._is_animate(tokens[token.head]) or tokens[token.head].dep == "conj"

    def _describes_head(self, conjunct: int) -> bool:
        """True if the parser took a thing on someone for a conjunct of that person: "a woman with glasses and a scarf".

        Such a thing follows a preposition that names what someone wears or has. The part of a thing follows "with".
        """
        tokens, words = self.scene.tokens, self.scene.words
        head = tokens[conjunct].head
        has = any(words[i] in ("with", "in", "wearing", "holding") for i in self.children[head] if head < i < conjunct)
        is_name = tokens[conjunct].pos == "PROPN" and not is_known(words[conjunct])
        is_thing = tokens[conjunct].pos in NOUNS and not is_name and not self._is_animate(tokens[conjunct])
        if self._is_animate(tokens[head]):
            return has and is_thing
        has = any(words[i] in ("with", "w/", "featuring") for i in self.children[head] if head < i < conjunct)
        return has and is_thing and shares(singular(tokens[conjunct])).get("location", 0) < 0.5

    def _is_animate(self, token: Token) -> bool:
        return self.is_english and is_animate(singular(token))

    def _with_state(self, end: int) -> int:
        """Return the end after the state of a part, at the end: "a car with its hood" + "open"."""
        tokens, words = self.scene.tokens, self.scene.words
        last = self.ending.get(end)
        if last is None or words[last] not in ("his", "her", "its", "their") or words[last - 1 : last] != ["with"]:
            return end
        state = end + 1 if end < len(tokens) and tokens[end].tag == "RB" else end
        is_state = state < len(tokens) and (tokens[state].tag in ("JJ", "VBN", "VBD", "RP") or words[state] == "open")
        return state + 1 if is_state and tokens[min(state + 1, len(tokens) - 1)].pos not in NOUNS else end

    def _stop(self, phrase: NounPhrase, end: int) -> int:
        """Return the end after a whole list, before what is no description, and before a mark without its partner."""
        scene, starting = self.scene, self.starting
        words, tokens = scene.words, scene.tokens
        for i in range(phrase.end, end):
            if self._is_other(phrase, i, end):
                end = i
            if i >= end or words[i] in RELATIVES:
                break
        for i in range(phrase.end, end - 1):
            if words[i] == "," and not self._goes_on(phrase, i + 1, end):
                end = i
                break
        end = self._without_last(phrase, end)
        text, start = scene.text, starting[phrase.first][1].start
        for opening, closing in (("(", ")"), ("[", "]")):
            span = text[start : tokens[end - 1].end]
            if span.count(opening) > span.count(closing):
                is_next = end < len(tokens) and words[end] == closing
                end = end + 1 if is_next else max(phrase.end, _first(words, opening, phrase.end, end))
            elif span.count(opening) < span.count(closing):
                end = max(phrase.end, _first(words, closing, phrase.end, end))
        stop = tokens[end - 1].end
        is_inch = INCH.search(text, start, stop) and text[start - 1 : start] != '"'
        is_mark = end < len(words) and words[end] in ('"', "“")
        quoted = quotation(text, stop) or (is_mark and quotation(text, tokens[end].end))
        if quoted and end > phrase.end:
            end = bisect_left(tokens, quoted, key=lambda token: token.end) + 1
        elif text.count('"', start, stop) % 2 and not is_inch:
            end = max(phrase.end, _first(words, '"', phrase.end, end))
        return end

    def _is_other(self, phrase: NounPhrase, i: int, end: int) -> bool:
        """True if no description of the thing begins at token `i`.

        That is a finite verb without a relative word, a time, an owner, what others do meanwhile, and what belongs to the one
        who acts: "the ball with her racket".
        """
        words, tokens, word = self.scene.words, self.scene.tokens, self.scene.words[i]
        if word in ("while", "as"):
            return any(tokens[child].dep in SUBJECTS for child in self.children[tokens[i].head])
        if word in ("during", "after", "before"):
            return tokens[i].pos in ("ADP", "SCONJ")
        if word == "by":
            return tokens[min(i + 1, end - 1)].pos == "PROPN" and tokens[i - 1].pos != "VERB"
        if word in ("with", "in"):
            is_hers = words[i + 1 : i + 2] in (["his"], ["her"])
            return is_hers and not any(t.pos == "PROPN" or self._is_animate(t) for t in tokens[phrase.first : i])
        is_finite = tokens[i].tag in ("VBZ", "VBP", "MD") or word in ("was", "were")
        return is_finite and word not in RELATIVES

    def _without_last(self, phrase: NounPhrase, end: int) -> int:
        """Return the end before a last phrase that describes nothing: a time, an event, a word for the picture, a place."""
        words, tokens, starting = self.scene.words, self.scene.tokens, self.starting
        if (last := self.ending.get(end, 0)) <= phrase.end:
            return end
        root, before, is_removed = starting[last][0].root, words[last - 1], starting[last][1].removed
        if is_removed and tokens[root].dep == "appos" and before[0].isalnum():
            return last
        classes = shares(singular(tokens[root]))
        is_time = is_removed and sum(classes.get(name, 0) for name in ("time", "event", "act")) > 0.5
        is_own = phrase.first <= tokens[last - 1].head < phrase.end and before in ("in", "at", "near", "outside")
        is_place = is_own and tokens[root].pos == "PROPN" and not is_known(words[root])
        is_home = before == "at" and words[last:end] == ["home"]
        return last - 1 if is_home or is_place or (is_time and tokens[last - 1].pos == "ADP") else end

    def _goes_on(self, phrase: NounPhrase, i: int, end: int) -> bool:
        """True if a list or a clause that belongs to a phrase begins at token `i`, after a comma."""
        words, tokens = self.scene.words, self.scene.tokens
        i += i + 1 < end and words[i] in ("and", "&", "or")
        after = self.starting.get(i)
        if after and after[1].removed and after[1].removed != "pronoun":
            return False
        head = after[0].root if after else i
        while after is None and i <= tokens[head].head < end and tokens[head].head != head:
            head = tokens[head].head
        dep, parent = tokens[head].dep, tokens[head].head
        if parent in (phrase.root, phrase.top):
            return dep in CLAUSES and tokens[head].pos != "PROPN"
        has_conjunction = any(words[j] in ("and", "&", "or") for j in range(i, end))
        return (
            (dep == "conj" and not (tokens[parent].pos == "VERB" and tokens[head].pos in (*NOUNS, "ADJ")))
            or dep in CLAUSES
            or (dep in ("appos", "npadvmod") and has_conjunction and tokens[head].pos == "NOUN")
        )

    def _is_edge_mark(self, index: int) -> bool:
        """True for white space, marks, conjunctions and prepositions to remove from the end of an expression."""
        tokens, word = self.scene.tokens, self.scene.words[index]
        pos = tokens[index].pos
        if word in (")", "]", '"', "'", "”", "’"):
            return False  # its partner is inside, see _stop
        if word in ("'s", "’s"):  # but not that of a shop: "a burger at Moe's"
            return tokens[index].tag != "POS" or tokens[tokens[index].head].dep == "poss"
        return (pos in EDGE_MARKS and (self.describes or pos != "ADP")) or not ALPHANUMERIC.search(word)


def _first(words: Sequence[str], word: str, start: int, end: int) -> int:
    """Return the index of the first occurrence of a word in [start, end), else `start`."""
    return next((i for i in range(start, end) if words[i] == word), start)


def mark_maximal(expressions: Sequence[tuple[int, int, int]]) -> list[RefExp]:
    """Convert (chunk, start, end) to RefExp; `is_maximal` is false for an expression that lies inside another one."""
    flags = maximal([(start, end) for _, start, end in expressions])
    return [RefExp(*item, is_maximal) for item, is_maximal in zip(expressions, flags, strict=True)]


# Phrases of GRIT rows, whose noun chunks, referring expressions and boxes are given in the input.
#
# The given spans count characters of the original caption. Cleaning may change the caption, so the spans are moved to
# the cleaned one.

Box = tuple[float, float, float, float, float]
"""x_min, y_min, x_max, y_max and score."""


@dataclass(frozen=True, kw_only=True)
class GivenPhrases:
    """The phrases of a GRIT row, in the cleaned caption."""

    chunks: list[Chunk]
    ref_exps: list[RefExp]
    given_chunks: list[int]
    """Index in `chunks` of each given box; negative if it has none (schemas.status.GIVEN_REMOVALS)."""


def given_phrases(
    original: str,
    caption: str,
    given_chunks: Sequence[GivenBox],
    given_ref_exps: Sequence[GivenBox],
    tokens: Sequence[Token],
    removes_absent: bool = False,
) -> GivenPhrases:
    """Return the noun chunks and referring expressions of a GRIT row, and the noun chunk of each given box.

    GRIT lists noun chunks and expressions separately. An expression belongs to a chunk if it has the same box and
    score and contains the chunk; a chunk without one is its own expression. Chunks that are not found in the cleaned
    caption are skipped; those of absent things are removed, if `removes_absent`.
    """
    places = place_spans(
        original, caption, [(given["start"], given["end"]) for given in (*given_chunks, *given_ref_exps)]
    )
    chunk_spans, n = places[: len(given_chunks)], len(given_chunks)
    ref_exps: dict[Box, list[Span]] = {}  # by box and score, in their order
    for given, span in zip(given_ref_exps, places[n:], strict=True):
        if span[0] >= 0:
            ref_exps.setdefault(_box(given), []).append(span)
    expressions: dict[Span, Span] = {}
    for given, span in zip(given_chunks, chunk_spans, strict=True):
        if span[0] >= 0 and span not in expressions:
            candidates = dict.fromkeys(ref_exps.get(_box(given), ()))
            expressions[span] = next((e for e in candidates if e[0] <= span[0] and span[1] <= e[1]), span)
    spans = sorted(expressions)
    absent = {span for span in spans if removes_absent and _names_absent(caption, tokens, *span)}
    index = {span: given_code("absent") if span in absent else number for number, span in enumerate(spans)}
    kept = [(number, *expressions[span]) for number, span in enumerate(spans) if span not in absent]
    return GivenPhrases(
        chunks=[Chunk(*span, _root(tokens, *span), "absent" if span in absent else None) for span in spans],
        ref_exps=mark_maximal(kept),
        given_chunks=[index.get(span, span[0]) for span in chunk_spans],
    )


def _names_absent(caption: str, tokens: Sequence[Token], start: int, end: int) -> bool:
    """Apply `is_absent` to a given phrase; without a parse, to its words alone."""
    words = WORD.finditer(caption)
    tokens = tokens or [Token(m.start(), m.end(), i, "", "", "", m[0].lower()) for i, m in enumerate(words)]
    first = bisect_right(tokens, start, key=lambda token: token.end)
    last = bisect_left(tokens, end, key=lambda token: token.start)
    scene = Scene(caption, [caption[token.start : token.end].lower() for token in tokens], tokens, [], [])
    root = _root(tokens, start, end)
    return root >= 0 and is_absent(scene, NounPhrase(first, last, root, root))


def _box(given: GivenBox) -> Box:
    x_min, y_min, x_max, y_max, score = (given[name] for name in ("x_min", "y_min", "x_max", "y_max", "score"))
    return x_min, y_min, x_max, y_max, score


def _root(tokens: Sequence[Token], start: int, end: int) -> int:
    """Return the last token of the span whose head lies outside it, or -1 if no token overlaps the span."""
    first = bisect_right(tokens, start, key=lambda token: token.end)
    last = bisect_left(tokens, end, key=lambda token: token.start)
    outside = (i for i in reversed(range(first, last)) if tokens[i].head == i or not first <= tokens[i].head < last)
    return next(outside, -1)
