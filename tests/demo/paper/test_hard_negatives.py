"""Hard negatives of the miniature study: true captions hold in the layout of their scene, and false ones do not."""

import re
from itertools import islice
from random import Random

import pytest

from demo.paper.hard_negatives import OPPOSITE, SUGARCREPE, VL_CHECKLIST, Captions, object_columns, view_of
from demo.world.grammar import LARGE, RELATIONS, SMALL
from demo.world.layout import Slot, relations
from demo.world.scenes import DEFAULT, TEST_SEEDS, compose
from demo.world.vocabulary import COLOURS

N = 25
SHORT = min(DEFAULT.width, DEFAULT.height)
RELATED = re.compile(f"(.+) ({'|'.join(RELATIONS[name][0] for name in OPPOSITE)}) (.+)")


def named(phrase: str, slots: list[Slot]) -> list[Slot]:
    """The objects that a phrase such as "a red balloon" names."""
    words = phrase.split(" ", 1)[1]
    adjective, _, rest = words.partition(" ")
    if adjective in COLOURS and rest:
        return [slot for slot in slots if slot.concept.name == rest and slot.colour == adjective]
    if adjective in ("small", "large"):
        fits = {"small": lambda side: side < SMALL * SHORT, "large": lambda side: side > LARGE * SHORT}[adjective]
        return [slot for slot in slots if slot.concept.name == rest and fits(slot.side)]
    return [slot for slot in slots if slot.concept.name == words]


def is_true(caption: str, slots: list[Slot]) -> bool:
    if found := RELATED.fullmatch(caption):
        first, second = named(found[1], slots), named(found[3], slots)
        held = relations(first, second, slots, DEFAULT) if first and second else []
        return any(RELATIONS[name][0] == found[2] for name in held)
    return all(named(phrase, slots) for phrase in re.split(" and |, ", caption))


def pairs_of(name: str) -> list[tuple[list[Slot], Captions]]:
    def found():  # type: ignore[no-untyped-def]
        for seed in TEST_SEEDS:
            slots = compose(seed)[0]
            view = view_of(slots, Random(seed))
            made = [captions for column, captions in object_columns(view) if column == name]
            if name in SUGARCREPE | VL_CHECKLIST:
                made = [(SUGARCREPE | VL_CHECKLIST)[name](view)]
            yield from ((slots, captions) for captions in made if captions)

    return list(islice(found(), N))


@pytest.mark.parametrize("name", [*SUGARCREPE, *VL_CHECKLIST, "Object/Location/margin", "Object/Size/small"])
def test_only_the_first_caption_holds(name: str) -> None:
    for slots, (true, false) in pairs_of(name):
        assert is_true(true, slots), true
        assert not is_true(false, slots), false


def test_columns_of_objects_follow_place_and_size() -> None:
    columns = {
        column: [slots for slots, _ in pairs_of(column)] for column in ("Object/Size/large", "Object/Size/small")
    }
    largest = [max(slot.side for slot in slots) for slots in columns["Object/Size/large"]]
    assert min(largest) > (SHORT**2 / 6) ** 0.5
    smallest = [min(slot.side for slot in slots) for slots in columns["Object/Size/small"]]
    assert max(smallest) < (SHORT**2 / 20) ** 0.5


def test_the_same_scene_gives_the_same_captions() -> None:
    assert pairs_of("swap_att") == pairs_of("swap_att")
