"""The devices on which a test runs: the CPU, and a GPU if there is one."""

import pytest
import torch

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
GPU = pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])
DEVICES = ["cpu", GPU]
