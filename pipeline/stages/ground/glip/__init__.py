"""GLIP (Li et al., CVPR 2022), a phrase grounding network, in plain PyTorch. Loads the released checkpoints."""
