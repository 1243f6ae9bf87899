"""Weight files: trained models, checkpoints of runs, and the formats of the released models and of open_clip."""
