"""Types of the losses' settings. Does not import torch."""

from typing import Literal

Logits = Literal["distance", "inner"]
"""Similarity in the contrastive loss: minus the geodesic distance, or the Lorentzian inner product."""
Order = Literal["entropy", "text", "norm", "random"]
"""Apex of the entailment cone of a pair: the point of lower entropy, the text, the point nearer the origin, or any."""
Entropy = Literal["abs", "normalised", "softmax"]
"""Conversion of a point's coordinates to the probabilities of which the entropy is computed."""
Calibration = Literal["released", "paper"]
"""Formula of UNCHA's calibration of uncertainties; `trainer.losses.uncertainty.calibration` has both."""
Reduction = Literal["mean", "sum"]
"""Reduction over the edges and words of a caption."""
