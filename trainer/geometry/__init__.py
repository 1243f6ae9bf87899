"""Hyperbolic geometry as functions of tensors: Lorentz model, Poincare ball, products of factors."""
