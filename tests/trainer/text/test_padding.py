"""Padding of texts to multiples of a number of tokens."""

import torch

from trainer.text.base import pad


def test_texts_are_padded_to_a_multiple_but_not_beyond_the_context() -> None:
    rows = [[1, 2, 3], [4]]
    assert torch.equal(pad(rows), torch.tensor([[1, 2, 3], [4, 0, 0]]))
    assert pad(rows, 9, multiple=4, most=77).tolist() == [[1, 2, 3, 9], [4, 9, 9, 9]]
    assert pad([[1] * 70], multiple=16, most=77).shape == (1, 77)
    assert pad([[1] * 80], multiple=16, most=77).shape == (1, 80)
