"""Try rows again whose download failed for a reason that can pass."""
