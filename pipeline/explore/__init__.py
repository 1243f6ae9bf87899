"""Look at the rows of finished outputs in a browser."""
