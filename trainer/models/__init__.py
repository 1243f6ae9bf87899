"""The models, one file each: `clip`, `meru`, `hycoclip`, `phyclip`, `poinclip`, `syntax_meru`.

All models derive from `dual_encoder.DualEncoder`, and the hyperbolic models from its subclass `hyperbolic.Hyperbolic`.
`config` has the settings of all models and `registry` builds a model by name; neither imports torch. `nonfinite`
writes the error message for a training step whose loss or gradient is not finite.
"""
