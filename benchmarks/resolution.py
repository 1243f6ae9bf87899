"""Benchmark: bytes and CPU time of stored images at 256, 512 and 800 px.

    python -m benchmarks.resolution [n_images]

Images like those of the web are drawn from noise whose amplitude falls with the frequency, as in photographs, in the
sizes of `SIZES`, and encoded with quality 85. For each stored size, the benchmark decodes, resizes and encodes them as
the download stage does, and then measures what reads them: decoding for the models, with GLIP's resizing to 800 px, and
decoding for the trainer. GLIP's network computes on the same number of pixels in all cases. Times are of the CPU, with
one thread. `ratio` is the stored bytes at 800 px by those at 256 px.
"""

import argparse
import io
import json
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import PIL.Image
import torch

from common.images import Image, ImageLimits, decode, decode_reduced
from pipeline.images import ResizeConfig, encode_jpeg, resize, resize_as

SIZES: Sequence[tuple[int, int, float]] = (
    (300, 225, 0.15),
    (500, 375, 0.2),
    (640, 480, 0.2),
    (1024, 768, 0.25),
    (1600, 1067, 0.15),
    (3000, 2000, 0.05),
)
"""Width, height and share of the images: assumed, not counted from a data set."""
STORED = (256, 512, 800)
GLIP_SHORT_SIDE = 800
ROUNDS = 3


def draw(width: int, height: int, rng: np.random.Generator) -> bytes:
    """Draw a JPEG whose amplitudes fall with the frequency, as in photographs: 1.3 to 2.7 bits a pixel."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = np.inf
    shared, *own = (np.fft.irfft2(np.fft.rfft2(rng.normal(size=(height, width))) / frequency**1.4) for _ in range(4))
    channels = [
        3 * shared / shared.std() + channel / channel.std() for channel in own
    ]  # colors vary less than brightness
    pixels = np.stack([128 + 55 * channel / channel.std() for channel in channels], axis=-1)
    out = io.BytesIO()
    PIL.Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(out, "JPEG", quality=85)
    return out.getvalue()


def cpu_ms(work: Callable[[bytes], object], items: Sequence[bytes]) -> float:
    """Return the CPU milliseconds of `work` for one item: the least of several rounds."""
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for item in items:
            work(item)
        times.append((time.process_time() - start) / len(items))
    return 1e3 * min(times)


def stored(data: bytes, config: ResizeConfig) -> bytes:
    """Return an image as the download stage stores it: unchanged if it is not larger."""
    image = decode_reduced(data, ImageLimits(), config.size).pixels
    small = resize_as(image, config)
    return data if small is image else encode_jpeg(small, config.jpeg_quality)


def glip_input(data: bytes) -> Image:
    """Decode a stored image and resize it to GLIP's short side, which is 800 px for most aspect ratios."""
    image = decode(data)
    height, width = (round(side * GLIP_SHORT_SIDE / min(image.shape[:2])) for side in image.shape[:2])
    return resize(image, height, width)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("n", nargs="?", type=int, default=100, help="number of images")
    n = parser.parse_args().n
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    images = [draw(width, height, rng) for width, height, share in SIZES for _ in range(round(share * n))]
    input_kb = sum(map(len, images)) / len(images) / 1e3
    print(f"{len(images)} images of {input_kb:.0f} kB on average")
    print(f"{'stored px':>9}{'kB/image':>10}{'TB per 1e8':>12}{'store ms':>10}{'GLIP ms':>10}{'train ms':>10}")
    result: dict[str, object] = {"name": "resolution", "images": len(images), "input_kb": round(input_kb, 1)}
    sizes: dict[int, float] = {}
    for size in STORED:
        config = ResizeConfig(size=size)
        files = [stored(data, config) for data in images]
        sizes[size] = sum(map(len, files)) / len(files) / 1e3
        store, glip, train = (
            cpu_ms(partial(stored, config=config), images),
            cpu_ms(glip_input, files),
            cpu_ms(decode, files),
        )
        print(f"{size:>9}{sizes[size]:>10.1f}{sizes[size] / 10:>12.2f}{store:>10.2f}{glip:>10.2f}{train:>10.2f}")
        result[str(size)] = {
            "kb": round(sizes[size], 1),
            "store_ms": round(store, 2),
            "glip_input_ms": round(glip, 2),
            "decode_ms": round(train, 2),
        }
    print(json.dumps(result | {"ratio": round(sizes[800] / sizes[256], 2)}))


if __name__ == "__main__":
    main()
