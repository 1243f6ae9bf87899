"""The processes of a run: process group, DDP and FSDP, collectives with gradients, and stop signals."""
