"""Several processes: collectives with gradients, the process group, DDP and FSDP."""
