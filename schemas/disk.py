"""The file of points in the Poincaré disk, which `python -m trainer.analyses.disk` writes and the explorer reads."""

from typing import Annotated, Any, Final, TypedDict

KINDS: Final = ("image", "text", "box_image", "box_text")
"""What a point is: an image, its caption, a box of it, or the phrase of a box."""


class DiskFile(TypedDict):
    """JSON object. Its points are `[key, kind, text, x, y]`: `key` of the row, one of KINDS, caption or phrase, place."""

    schema: Annotated[str, "version of the schemas"]
    model: Annotated[str, "the model, as it was given"]
    projection: Annotated[str, "how the points came into the disk"]
    points: Annotated[list[list[Any]], "the points, x² + y² <= 1"]
