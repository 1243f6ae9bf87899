"""A grounder without a network, for tests of the ground stage."""

from collections.abc import Sequence

from hypergrit_common.images import Image
from pipeline.stages.ground.grounder import Detection, Grounded, Span


class FakeGrounder:
    """Finds one box for each phrase, except for those in `unknown`, and records its input.

    `sizes` and `texts` hold the image sizes of each batch and the phrases of each image.
    """

    def __init__(self, score: float = 0.9, unknown: Sequence[str] = ()) -> None:
        self.score = score
        self.unknown = unknown
        self.sizes: list[list[tuple[int, ...]]] = []
        self.texts: list[list[str]] = []

    def bucket(self, height: int, width: int) -> tuple[int, int]:
        return height, width

    def prepare(
        self, images: Sequence[Image], captions: Sequence[str], spans: Sequence[Sequence[Span]]
    ) -> list[list[str]]:
        self.sizes.append([image.shape[:2] for image in images])
        texts = [[caption[a:b] for a, b in phrases] for caption, phrases in zip(captions, spans, strict=True)]
        self.texts += texts
        return texts

    def forward(self, prepared: list[list[str]]) -> list[list[str]]:
        return prepared

    def collect(self, output: list[list[str]]) -> list[Grounded]:
        return [
            Grounded(
                boxes=[
                    Detection(n, (n / 4, 0.0, n / 4 + 0.2, 1.2), self.score - n / 100)
                    for n, text in enumerate(phrases)
                    if text not in self.unknown
                ],
                dropped={n: "unknown_words" for n, text in enumerate(phrases) if text in self.unknown},
            )
            for phrases in output
        ]
