"""Plots of the metrics of training runs."""
