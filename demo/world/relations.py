"""What is where: relations that a layout makes true, and none that a viewer could dispute."""

import math

from demo.world.layout import Slot, WorldConfig


def centre(slots: list[Slot]) -> tuple[float, float]:
    return sum(slot.cx for slot in slots) / len(slots), sum(slot.cy for slot in slots) / len(slots)


def gap(a: Slot, b: Slot) -> float:
    """Pixels between two slots; 0 when they touch or overlap."""
    dx = max(a.x, b.x) - min(a.x + a.side, b.x + b.side)
    dy = max(a.y, b.y) - min(a.y + a.side, b.y + b.side)
    return math.hypot(max(dx, 0.0), max(dy, 0.0))


def relations(first: list[Slot], second: list[Slot], scene: list[Slot], config: WorldConfig) -> list[str]:
    """Relations from `first` to `second` that hold for every pair of their members, as keys of `grammar.RELATIONS`.

    Left, right, above, below: the other axis differs less, and no member reaches past the other's centre.
    """
    if len(first) == len(second) == 1:
        a, b = first[0], second[0]
        if a.stands and scene[a.stands[1]] is b:
            return ["on", "above"] if a.stands[0] == "on" else ["in_front"]
        if b.stands and scene[b.stands[1]] is a:
            return ["below"] if b.stands[0] == "on" else ["behind"]
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
        short = min(config.width, config.height)
        if gap(a, b) < 0.08 * short and math.dist((ax, ay), (bx, by)) < 0.5 * short:
            found.append("near")
        elif gap(a, b) > 0.5 * short:
            found.append("far")
    return found


def place_of(slot: Slot, config: WorldConfig) -> str:
    """Which ninth of the picture the slot's centre lies in; a key of `grammar.PLACES`."""
    column = ("left", "", "right")[min(int(3 * slot.cx / config.width), 2)]
    row = ("top", "", "bottom")[min(int(3 * slot.cy / config.height), 2)]
    return f"{row} {column}".strip() or "middle"
