"""What is where: relations that a layout makes true, and none that a viewer could dispute."""

import math

from demo.world.layout import Slot, WorldConfig, shared_area


def centre(slots: list[Slot]) -> tuple[float, float]:
    return sum(slot.cx for slot in slots) / len(slots), sum(slot.cy for slot in slots) / len(slots)


def gap(a: Slot, b: Slot) -> float:
    """Pixels between two slots; 0 when they touch or overlap."""
    dx = max(a.x, b.x) - min(a.x + a.side, b.x + b.side)
    dy = max(a.y, b.y) - min(a.y + a.side, b.y + b.side)
    return math.hypot(max(dx, 0.0), max(dy, 0.0))


def relations(first: list[Slot], second: list[Slot], scene: list[Slot], config: WorldConfig) -> list[str]:
    """Names of the relations from `first` to `second` that hold for every pair of their members; keys of `grammar.RELATIONS`.

    Left, right, above and below ask that the other axis differs less and that no member reaches past the other's centre.
    """
    if len(first) == len(second) == 1 and first[0].rests_on is not None and scene[first[0].rests_on] is second[0]:
        return ["on", "above"]
    (ax, ay), (bx, by) = centre(first), centre(second)
    found = []
    if abs(ax - bx) > abs(ay - by):
        if all(a.x + a.side < b.cx and a.cx < b.x for a in first for b in second):
            found.append("left")
        elif all(b.x + b.side < a.cx and b.cx < a.x for a in first for b in second):
            found.append("right")
    elif all(a.y + a.side < b.cy and a.cy < b.y for a in first for b in second):
        found.append("above")
    elif all(b.y + b.side < a.cy and b.cy < a.y for a in first for b in second):
        found.append("below")
    if len(first) == len(second) == 1:
        a, b = first[0], second[0]
        short = min(config.width, config.height)
        if shared_area(a, b) > 0.06:
            # The order of the list is the order of drawing.
            found.append("in_front" if scene.index(a) > scene.index(b) else "behind")
        elif gap(a, b) < 0.08 * short:
            found.append("near")
        elif gap(a, b) > 0.5 * short:
            found.append("far")
    return found


def place_of(slot: Slot, config: WorldConfig) -> str:
    """Which ninth of the picture the slot's centre lies in; a key of `grammar.PLACES`."""
    column = ("left", "", "right")[min(int(3 * slot.cx / config.width), 2)]
    row = ("top", "", "bottom")[min(int(3 * slot.cy / config.height), 2)]
    return f"{row} {column}".strip() or "middle"
