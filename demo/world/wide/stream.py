"""The training scenes: dense grids, scenes of the narrow world, and scenes of the wide world."""

from collections.abc import Iterator
from random import Random

from demo.world.scenes import Curriculum, Scene, list_prompt, make_grid, make_scene
from demo.world.sprites import Style
from demo.world.wide.scenes import make_wide_scene


def mixed_stream(
    seed_start: int, styles: tuple[Style, ...], *, step: int, curriculum: Curriculum, wide_share: float
) -> Iterator[Scene]:
    """Yield the scenes of `seed_start`, `seed_start + step`, ... indefinitely.

    A share of `wide_share` of the scenes that are not dense grids is from the wide world.
    """
    seed = seed_start
    while True:
        rng = Random(f"mix {seed}")
        style = rng.choice(styles)
        if rng.random() < curriculum.dense_share(seed - seed_start):
            yield make_grid(seed, style)
        else:
            scene = make_wide_scene(seed, style) if rng.random() < wide_share else make_scene(seed, style)
            if scene.objects:
                yield list_prompt(scene) if rng.random() < curriculum.list_prompt_share else scene
        seed += step
