"""What tests of every part need."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def autograd_before_compilers() -> None:
    """torch.compile announces devices that are none; autograd, first used after that, keeps a thread for each, and tests cannot fork."""
    torch.ones(1, requires_grad=True).backward()
