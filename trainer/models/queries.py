"""Queries of images in a batch, and the pooling of patches by them (Hyper3-CLIP).

Shapes: b pairs, m queries, p patches, w and v widths of the image and the text tower, d embedding width.
"""

from typing import Final

import torch
from torch import Tensor, nn

from trainer.batch import Stream
from trainer.models.points import Points
from trainer.models.terms import Entails

QUERIES: Final = "queries"
"""Stream of the queries of all pairs, with owner, parent and weight (`trainer.data.text_streams`)."""


class QueryPooling(nn.Module):
    """Cross-attention of queries over the patches of their images: x + MLP(LN(x)), x = MHA(W h, Z, Z) (section 3.2)."""

    def __init__(self, width: int, text_width: int, heads: int, is_mean: bool = False) -> None:
        super().__init__()
        self.is_mean = is_mean
        self.query = nn.Linear(text_width, width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, states: Tensor, patches: Tensor, stream: Stream) -> Tensor:
        """Patches [b p w] pooled for queries [m w] with text states [m v]. Those of an image share keys and values."""
        owner, queries = stream.owner, self.query(states)
        assert owner is not None
        if self.is_mean:  # each parameter has a gradient, as DDP expects
            return patches.mean(1)[owner] + 0 * torch.stack([part.sum() for part in self.parameters()]).sum()
        place = torch.arange(len(owner), device=owner.device) - torch.searchsorted(owner, owner)
        padded = queries.new_zeros(len(patches), max(stream.chain, 1), queries.shape[1])
        padded = padded.index_put((owner, place), queries)
        found = self.attention(padded, patches, patches, need_weights=False)[0][owner, place]
        pooled: Tensor = found + self.mlp(self.norm(found))
        return pooled


def query_streams(
    stream: Stream, text: Tensor, pooled: Tensor, captions: Tensor, is_shuffled: bool = False
) -> dict[str, Stream]:
    """Streams of the queries [m d], of the patches pooled for them [m d], and of the texts above them, or those of others."""
    owner = stream.owner
    assert owner is not None
    assert stream.parent is not None
    above = torch.where(stream.parent[:, None] < 0, captions[owner], text[stream.parent.clamp(min=0)])
    return {
        QUERIES: stream._replace(rows=text),
        "query_images": Stream(pooled, "image", owner),
        "query_parents": Stream(above.roll(1, 0) if is_shuffled else above, "text", owner),
    }


def weights_of(points: Points, entails: Entails) -> Tensor | float:
    """The weights [m] of the rows of a relation."""
    found = points.stream(QUERIES).weight if entails.name.startswith("query") else None
    return 1.0 if found is None else found
