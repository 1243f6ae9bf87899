"""GLIP (Li et al., CVPR 2022), a grounded detector, in plain PyTorch; the released checkpoints can be loaded."""
