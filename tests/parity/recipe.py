"""Deterministic weights, images and embeddings for the parity cases.

Uses only numpy and the standard library. All values depend only on (seed, name, shape), so two implementations with the
same state-dict keys and shapes get bit-identical inputs without exchanging a checkpoint.
"""

import re
import zlib

import numpy as np

# Entries of a state dict that are not drawn: the model computes them, and the parity case checks the result.
BUILT = ("visual.pos_embed", "textual.attn_mask", "pixel_mean", "pixel_std")

# (pattern of the key, mean, half width) of the learnable scalars, which are drawn uniformly
_SCALARS = [
    (r"^logit_scale$", np.log(1 / 0.07), 0.2),
    (r"^(curv|curvs\.\d+)$", 0.0, 0.5),
    (r"^(visual|textual)_alpha$", np.log(0.10), 0.2),
    (r"^(visual|textual)_concept_alphas\.\d+$", np.log(0.5), 0.4),
]


def rng_for(name, seed=0):
    """A generator that depends only on the name and the seed."""
    return np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))


def weight(key, shape, seed=0):
    """The value of a state-dict entry, a float32 array."""
    shape = tuple(int(s) for s in shape)
    rng = rng_for(key, seed)
    if shape == ():
        for pattern, centre, jitter in _SCALARS:
            if re.match(pattern, key):
                return np.float32(centre + jitter * rng.uniform(-1.0, 1.0))
        raise KeyError(f"no recipe for scalar {key}")
    z = rng.standard_normal(shape)
    if len(shape) == 1:
        out = 1.0 + 0.1 * z if key.endswith("weight") else 0.05 * z
    elif key.endswith("token_embed.weight"):
        out = 0.3 * z
    elif key.endswith("posit_embed"):
        out = 0.1 * z
    elif key.endswith("cls_token"):
        out = 0.5 * z
    elif key.endswith("patch_embed.proj.weight"):
        out = 4.0 * z / np.sqrt(np.prod(shape[1:]))
    else:
        out = z / np.sqrt(np.prod(shape[1:]))
    return out.astype(np.float32)


def fill(shapes, seed=0, overrides=None):
    """The values of a state dict, {key: float32 array}, from {key: shape}; entries of BUILT are omitted."""
    overrides = overrides or {}
    return {
        k: (np.float32(overrides[k]) if k in overrides else weight(k, s, seed))
        for k, s in shapes.items()
        if k not in BUILT
    }


def images(name, n, size=224, seed=0):
    """Float32 images [n, 3, size, size] in [0, 1]: a 7x7 colour mosaic plus noise."""
    rng = rng_for("images:" + name, seed)
    coarse = rng.uniform(0.0, 1.0, (n, 3, 7, 7))
    coarse = coarse ** rng.uniform(0.3, 3.0, (n, 3, 1, 1))
    big = np.repeat(np.repeat(coarse, size // 7, 2), size // 7, 3)
    fine = rng.uniform(0.0, 1.0, (n, 3, size, size))
    return (0.8 * big + 0.2 * fine).astype(np.float32)
