"""Trained models: load, share and use them."""
