"""GLIP (Li et al., CVPR 2022): grounded detection, in plain PyTorch, with the released checkpoints' graph and key names."""
