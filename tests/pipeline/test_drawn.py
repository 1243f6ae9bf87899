import numpy as np

from demo.world.scenes import DEMO_SEEDS, make_scene
from demo.world.sprites import STYLES
from pipeline.images import MAX_SOFT_SHARE, MIN_IMAGES, are_unlike_drawings, soft_share

RNG = np.random.default_rng(0)
SLOPE = np.add.outer(np.arange(160), np.arange(200))[..., None].repeat(3, axis=2)


def photo_like() -> np.ndarray:  # type: ignore[type-arg]
    """Texture in several scales, whose amplitude falls with the frequency, as in photographs."""
    image = np.full((160, 160, 3), 128.0)
    for cell in (2, 4, 8, 16, 32):
        noise = RNG.normal(0, cell, (160 // cell, 160 // cell, 3))
        image += noise.repeat(cell, axis=0).repeat(cell, axis=1)
    return np.clip(image, 0, 255).astype(np.uint8)


def test_areas_borders_and_slight_slopes_are_not_soft() -> None:
    stripes = np.where(SLOPE // 40 % 2, 255, 0).astype(np.uint8)
    assert soft_share(stripes) < 0.05
    assert soft_share((SLOPE // 2).astype(np.uint8)) == 0


def test_texture_is_soft_also_in_small_and_flat_images() -> None:
    assert soft_share(photo_like()) > MAX_SOFT_SHARE
    assert soft_share(photo_like()[:40, :30]) > MAX_SOFT_SHARE
    assert soft_share(photo_like()[:1, :1]) >= 0


def test_scenes_of_the_demo_are_drawings_and_textures_are_not() -> None:
    scenes = [make_scene(DEMO_SEEDS[i], STYLES[i % len(STYLES)]).image for i in range(16)]
    assert not are_unlike_drawings(scenes)
    textures = [photo_like() for _ in range(MIN_IMAGES)]
    assert are_unlike_drawings(textures)
    assert not are_unlike_drawings(textures[1:])
