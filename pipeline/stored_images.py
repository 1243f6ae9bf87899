"""A cache of decoded images for the stages of one process."""

from common.images import STORED_IMAGE_LIMITS, Image, decode


class StoredImages:
    """Decode stored images and cache up to `max_bytes` of pixels.

    `ground` and `score` decode the same images. When the cache is full, further images are decoded at every call.
    """

    def __init__(self, max_bytes: int = 256_000_000) -> None:
        self.max_bytes = max_bytes
        self._cache: dict[bytes, Image] = {}
        self._free_bytes = max_bytes

    def __call__(self, data: bytes) -> Image:
        pixels = self._cache.get(data)
        if pixels is None:
            pixels = decode(data, STORED_IMAGE_LIMITS)
            if pixels.nbytes <= self._free_bytes:
                self._cache[data] = pixels
                self._free_bytes -= pixels.nbytes
        return pixels

    def clear(self) -> None:
        """Empty the cache at the end of a shard."""
        self._cache.clear()
        self._free_bytes = self.max_bytes
