"""Decoded images, shared by the stages of one process."""

from common.images import STORED, Image, decode


class StoredImages:
    """Pixels of the images that `download` stored, for stages of one process that look at the same ones.

    Decoded images are kept until `max_bytes` of pixels are held; what comes after is decoded anew each time.
    """

    def __init__(self, max_bytes: int = 256_000_000) -> None:
        self.max_bytes = max_bytes
        self._held: dict[bytes, Image] = {}
        self._free = max_bytes

    def __call__(self, data: bytes) -> Image:
        pixels = self._held.get(data)
        if pixels is None:
            pixels = decode(data, STORED)
            if pixels.nbytes <= self._free:
                self._held[data] = pixels
                self._free -= pixels.nbytes
        return pixels

    def clear(self) -> None:
        """Hold nothing: the shard they belong to is done."""
        self._held.clear()
        self._free = self.max_bytes
