"""Distributed training: the process group, DDP and FSDP, and collectives with gradients."""
