"""Files of weights: trained models, checkpoints of runs, and the formats of the papers and of open_clip."""
