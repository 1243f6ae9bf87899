"""The models, one file each; `registry.ENTRIES` lists them.

All models derive from `dual_encoder.DualEncoder`, those with entailment cones from its subclass `cones.Cones`, and the
hyperbolic ones from that one's, `hyperbolic.Hyperbolic`.
`config` has the settings of all models and `registry` builds a model by name; neither imports torch. `nonfinite`
writes the error message for a training step whose loss or gradient is not finite.
"""
