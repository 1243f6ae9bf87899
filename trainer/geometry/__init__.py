"""Hyperbolic geometry as functions of tensors.

`lorentz` and `poincare` have the same functions for two models of hyperbolic space: exponential and logarithmic map at
the origin, distances, and the exterior angle and half-aperture of entailment cones. `product` combines several
hyperbolic factors into one space. `types` has the types of the settings; it does not import torch.
"""
