"""The models, one file each: `clip`, `meru`, `hycoclip`, `phyclip`, `poinclip`, `syntax_meru`.

Their base class is `dual_encoder.DualEncoder`, for the hyperbolic ones through `hyperbolic.Hyperbolic`. `config` has
the settings of all models and `registry` builds a model by name; neither imports torch. `nonfinite` describes a
training step whose loss or gradient is not finite.
"""
