"""`dry_run=true`: check models, inputs and cluster, run a sample of the rows, and predict the whole job."""
