"""Fixtures of all tests."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def autograd_before_compilers() -> None:
    """Start autograd before torch.compile registers its pseudo-devices.

    Otherwise autograd starts a thread for each of them, and tests that fork processes hang.
    """
    torch.ones(1, requires_grad=True).backward()
