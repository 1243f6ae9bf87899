"""Settings of the models: the dataclasses behind the `model.*` keys. Does not import torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

from hypergrit_common.config import check_positive, check_range, runtime
from hypergrit_common.errors import UserError
from trainer.encoders.config import CACHED, TRANSFORMERS, ImageConfig, TextConfig
from trainer.geometry.types import EPS, Lift, Metric
from trainer.losses.types import Calibration, Entropy, Logits, Order, Reduction
from trainer.text.relations import RELATIONS

Ranking = Literal["released", "metric"]
"""Score by which the evaluation ranks. released: as in the authors' code; metric: the similarity used in training."""

CONTRAST_TERMS: Final = ("image", "text", "box_image", "box_text")
ENTAIL_TERMS: Final = ("text_image", "box_text_image", "cross_image", "cross_text")

IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
IMAGENET_STD: Final = (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Settings of any model: towers, projections and temperature.

    By default, the width and the temperature with its limit are those of MERU, section 4.1.

    Raises:
        UserError: a value is outside its range, or contradicts another one; so do the settings of all models.
    """

    # image tower
    image: ImageConfig = field(default_factory=ImageConfig)
    # text tower
    text: TextConfig = field(default_factory=TextConfig)
    # width of the joint embedding space
    embed_dim: int = 512
    # projections to it with a bias, as in Hyper3-CLIP
    projection_bias: bool = False
    # initial temperature of the contrastive loss; it is learned
    temperature_init: float = 0.07
    # upper limit of the logit scale, by which the contrastive loss multiplies similarities; the lowest temperature is
    # its inverse
    max_logit_scale: float = 100.0
    # approximate number of similarities (queries x candidates x factors) that the contrastive loss holds in memory at
    # once; null: the full matrix; auto: 2097152 on a CPU, as many as fit an eighth of the memory on a GPU. The loss and
    # its gradients do not depend on it, up to rounding
    loss_chunk: int | Literal["auto"] | None = runtime("auto")
    # contrastive losses: softmax, over all candidates of a query; sigmoid, of each pair by itself (SigLIP), with a learned
    # bias of the logits. SigLIP begins with temperature_init=0.1
    contrastive: Literal["softmax", "sigmoid"] = "softmax"
    # train on boxes and their phrases as additional image-text pairs, one per pair with boxes, or all (data.boxes); pairs
    # without boxes stay. We train the papers' CLIP and MERU "with boxes" in this way
    boxes_as_pairs: bool = False
    # courses of numeric settings over the steps, such as {curv_init: {course: log, values: [1, 0.2], steps: [0, 1000]}}: from
    # the first value to the second, by constant, linear, cosine or log; or several in a list. A setting with a course is
    # not learned (docs/training.md)
    schedules: dict[str, Any] = field(default_factory=dict)
    # mean of red, green and blue, subtracted from images in [0, 1]. Loading pretrained weights of a tower changes
    # neither this key nor pixel_std; most weights of open_clip expect OpenAI's mean, 0.48145466, 0.4578275, 0.40821073,
    # and standard deviation, 0.26862954, 0.26130258, 0.27577711. HyCoCLIP's released code used the standard deviation
    # as the mean by mistake; its released checkpoints contain the mean that they were trained with
    pixel_mean: tuple[float, float, float] = IMAGENET_MEAN
    # standard deviation of red, green and blue, by which images are divided
    pixel_std: tuple[float, float, float] = IMAGENET_STD

    logit_bias_init: ClassVar[float] = -10.0
    """Initial bias of the logits of the sigmoid loss, that of SigLIP."""

    def __post_init__(self) -> None:
        check_positive(self, "embed_dim", "temperature_init", "max_logit_scale", "pixel_std")
        if self.loss_chunk != "auto":
            check_positive(self, "loss_chunk")
        if 1 / self.temperature_init > self.max_logit_scale * (1 + 1e-6):
            raise UserError(
                f"temperature_init is {self.temperature_init:g}, so the logit scale would begin at "
                f"{1 / self.temperature_init:g}, above max_logit_scale={self.max_logit_scale:g}; raise one of them"
            )
        if not all(map(math.isfinite, self.pixel_mean)):
            raise UserError(f"pixel_mean is {list(self.pixel_mean)}; give finite numbers")


@dataclass(frozen=True, kw_only=True)
class ConesConfig(ModelConfig):
    """Settings of models with entailment cones. The defaults are MERU's, sections 3.2 and 4.1."""

    # weight of the entailment loss in the total loss; the contrastive loss has weight 1
    entail_weight: float = 0.2
    # K in the half-aperture of an entailment cone: arcsin(2 K / (sqrt(c) |apex|)) with curvature, arcsin(K / |apex|)
    # without
    min_radius: float = 0.1
    # small number that keeps roots and logarithms finite
    eps: float = EPS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "min_radius", "eps")
        check_range(self, "eps", least=0, below=1)
        check_range(self, "entail_weight", least=0, below=math.inf)


@dataclass(frozen=True, kw_only=True)
class EuCLIPConfig(ConesConfig):
    """Settings of EuCLIP (arXiv 2409.13079)."""

    # initial temperature of the contrastive loss; it is learned, and is at most 1
    temperature_init: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "temperature_init", least=0, most=1)
        check_range(self, "max_logit_scale", least=1)


@dataclass(frozen=True, kw_only=True)
class HyperbolicConfig(ConesConfig):
    """Settings of MERU (arXiv 2304.09172, section 4.1), shared by all hyperbolic models."""

    # initial c; the space has curvature -c
    curv_init: float = 1.0
    # learn c; false: it stays curv_init
    curv_learnable: bool = True
    # factor that limits c to [curv_init / curv_max_ratio, curv_init * curv_max_ratio]
    curv_max_ratio: float = 10.0
    # similarity in the contrastive loss. distance: minus the geodesic distance; inner: the Lorentzian inner product, an
    # ablation of MERU (table 4), for all models but phyclip and poinclip
    logits: Logits = "distance"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "curv_init")
        check_range(self, "curv_max_ratio", least=1)


@dataclass(frozen=True, kw_only=True)
class HyCoCLIPConfig(HyperbolicConfig):
    """Settings of HyCoCLIP (arXiv 2410.06912, appendix B).

    `entail_weight` multiplies half the sum of the four entailment terms, as in the released code. The default of 0.2 is
    therefore the paper's weight of 0.1 on their sum.
    """

    # also train on boxes and their phrases; false: on images and captions only
    use_boxes: bool = True
    # factor on the half-apertures of cones across modalities: a caption entails its image, a phrase its box
    eta_inter: float = 0.7
    # factor on the half-apertures of cones within a modality: a box entails its image, a phrase its caption
    eta_intra: float = 1.2
    # weights of the four terms of the contrastive loss, by what is compared with all candidates: image, text, box_image,
    # box_text; terms without a value have weight 1, and the sum is divided by 4 in any case
    contrast_terms: dict[str, float] = field(default_factory=dict)
    # weights of the four terms of the entailment loss: text_image, box_text_image (a phrase entails its box), cross_image
    # (a box entails its image), cross_text (a phrase entails its caption); terms without a value have weight 1
    entail_terms: dict[str, float] = field(default_factory=dict)
    # weight in cross_text of a phrase with the tokens of its caption, 0 to 1. Both are the same point, and one in a batch
    # of 48 can raise the norm of the gradient from 0.14 to 3.7; 1: that of all phrases, as in the authors' code
    equal_phrase_weight: float = 1.0
    # candidates in the contrastive loss of boxes and phrases. released: the captions and images of the batch, as in
    # HyCoCLIP eq. 6 and in the code of both papers; paper: the phrases and boxes of the batch, as in PHyCLIP eq. 4
    box_candidates: Literal["released", "paper"] = "released"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "eta_inter", "eta_intra", least=0, below=math.inf)
        check_range(self, "equal_phrase_weight", least=0, most=1)
        check_weights("contrast_terms", self.contrast_terms, CONTRAST_TERMS)
        check_weights("entail_terms", self.entail_terms, ENTAIL_TERMS)
        check_boxes(self.use_boxes, self.boxes_as_pairs)


@dataclass(frozen=True, kw_only=True)
class UNCHAConfig(HyperbolicConfig):
    """Settings of UNCHA (arXiv 2603.22042). `temperature_init` is that of images with captions.

    The defaults are those of the released code, which uses up to five boxes of each sample: data.boxes=all
    data.max_boxes=5.
    """

    # also train on boxes and their phrases; false: on images and captions only
    use_boxes: bool = True
    # initial temperature of boxes with phrases; it is learned
    temperature_box_init: float = 0.05
    # initial temperature of boxes with captions and of phrases with images; it is learned
    temperature_cross_init: float = 0.06
    # factor on the half-apertures of cones across modalities: a caption entails its image, a phrase its box
    eta_inter: float = 0.7
    # factor on the half-apertures of cones within a modality: a box entails its image, a phrase its caption
    eta_intra: float = 1.2
    # weight in cross_text of a phrase with the tokens of its caption, 0 to 1. Both are the same point, and one in a batch
    # of 48 can raise the norm of the gradient from 0.14 to 3.7; 1: that of all phrases, as in the authors' code
    equal_phrase_weight: float = 1.0
    # share of the angle that is added to the energy of every pair, also inside its cone
    leak: float = 0.1
    # weight of the calibration of each modality within the entailment loss
    calibration_weight: float = 10.0
    # formula of the calibration. released: that of the code, half of the paper's; paper: residual exp(-u) + u
    calibration: Calibration = "released"
    # captions and images with which boxes and phrases are compared. repeated: one for each box of the batch, as in the
    # released code, so that copies of a box's own caption are negatives; once: one for each sample
    candidates: Literal["repeated", "once"] = "repeated"
    # means over boxes. all: over those of all ranks, so that the number of ranks does not change the loss; rank: over
    # those of each rank, then over ranks, as in the released code. A rank without boxes then adds 0
    box_means: Literal["all", "rank"] = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "temperature_box_init", "temperature_cross_init")
        check_range(self, "eta_inter", "eta_intra", "leak", "calibration_weight", least=0, below=math.inf)
        check_range(self, "equal_phrase_weight", least=0, most=1)
        check_boxes(self.use_boxes, self.boxes_as_pairs)


@dataclass(frozen=True, kw_only=True)
class Hyper3Config(UNCHAConfig):
    """Settings of Hyper3-CLIP, which pools the patches of an image for queries: at most `max_queries` of `data`."""

    # heads of the pooling
    query_heads: int = 8
    # weights of the relations of queries, with their calibration: query_text_image (a query entails its patches),
    # query_image (these entail the image), query_text (a query entails the text above it); 1 without a value
    query_terms: dict[str, float] = field(default_factory=dict)
    # control of the ablations (table 5). mean: patches are averaged, not pooled by queries; reversed: the image entails the
    # patches; shuffled: each query gets the text above the one before it in the batch
    query_control: Literal["none", "mean", "reversed", "shuffled"] = "none"
    # share of the angle that is added to the energy of every pair, also inside its cone
    leak: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "query_heads", least=1)
        check_weights("query_terms", self.query_terms, ("query_text_image", "query_image", "query_text"))


@dataclass(frozen=True, kw_only=True)
class PHyCLIPConfig(HyCoCLIPConfig):
    """Settings of PHyCLIP: the embedding is a point in a product of hyperbolic factors.

    The defaults are those of the released code. As printed (appendix C.3), the weight of the entailment loss is 0.2 on
    the sum of its four terms, which is entail_weight=0.4 here.
    """

    # width of one hyperbolic factor; the space is a product of embed_dim / factor_dim of them
    factor_dim: int = 8
    # distance in the product space: l1, the mean of the factors' distances; l2, the root of their mean square
    metric: Metric = "l1"
    # initial scale of features before the lift. released: the inverse square root of factor_dim; paper: that of
    # embed_dim (1/sqrt(512) in appendix C.3), which puts the points of a factor nearer to its origin
    alpha_init: Literal["released", "paper"] = "released"
    # small number that keeps roots and logarithms finite
    eps: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "factor_dim")
        check_distance(self)
        if self.embed_dim % self.factor_dim:
            raise UserError(f"embed_dim is {self.embed_dim}; give a multiple of factor_dim, {self.factor_dim}")


@dataclass(frozen=True, kw_only=True)
class ARGENTConfig(HyCoCLIPConfig):
    """Settings of ARGENT (arXiv 2603.23311). Its energies have no cones, so the factors eta have no effect."""

    # angle in radians above which the energy of a pair grows linearly instead of quadratically
    huber_delta: float = 1.0
    # weight of the regulariser that keeps norms near 1/sqrt(2). The paper's value is not known to us; 0 is the default
    # of the only public implementation
    norm_weight: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "huber_delta")
        check_range(self, "norm_weight", least=0, below=math.inf)


@dataclass(frozen=True, kw_only=True)
class TaxonomyConfig(HyperbolicConfig):
    """Settings of Taxonomy. The papers use other spaces and losses; the weights are ours."""

    # weight, in the entailment loss, of pairs that skip levels of a chain (a class and a species of it, an order and an
    # image); 0: each level entails the next one alone
    transitive_weight: float = 1.0
    # energy of a pair. cone: the angle outside the entailment cone, as in MERU; angle: the exterior angle itself, without
    # cones, as in RCME
    energy: Literal["cone", "angle"] = "cone"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "transitive_weight", least=0, below=math.inf)
        if self.contrastive == "sigmoid":
            raise UserError("contrastive=sigmoid needs pairs, but taxonomy contrasts levels; use softmax")


@dataclass(frozen=True, kw_only=True)
class ATMGConfig(HyperbolicConfig):
    """Settings of ATMG ("Accept the Modality Gap", CVPR 2024), by default those of the released code.

    Its loss has no cones: `min_radius` has an effect in the evaluation only.
    """

    # c; the space has curvature -c
    curv_init: float = 0.1
    # learn c; false: it stays curv_init, as in the released code
    curv_learnable: bool = False
    # factor that limits c to [curv_init / curv_max_ratio, curv_init * curv_max_ratio]
    curv_max_ratio: float = 5.0
    # weight of an entailment loss, which the model does not have
    entail_weight: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.entail_weight:
            raise UserError(f"entail_weight is {self.entail_weight}, but atmg has no entailment loss; give 0")
        if self.logits != "distance":
            raise UserError(f"logits is {self.logits}, but atmg compares points by angles; leave it at distance")


@dataclass(frozen=True, kw_only=True)
class PoinCLIPConfig(HyperbolicConfig):
    """Settings of PoinCLIP. Both weights are those that table 4 of the paper selects."""

    # weight of the entailment loss, the paper's lambda
    entail_weight: float = 0.1
    # weight of the reward for wide angles, the paper's lambda_reg, from 0 to 1. At 1, points outside their cones are not
    # pulled inside
    entail_reward: float = 0.1
    # apex of the cone of a pair. entropy: the point of lower entropy; text: the caption, as in MERU; norm: the point nearer
    # the origin; random: either of the two. norm and random are controls of entropy, which mostly follows the norm
    order: Order = "entropy"
    # probabilities whose entropy orders image and text, computed from the coordinates x_i. abs: |x_i|; normalised:
    # |x_i| / sum_j |x_j|; softmax: softmax(x)_i
    entropy: Entropy = "abs"
    # lift of features to the ball: conformal, the ball's exponential map; isometric, MERU's map transferred to the ball
    lift: Lift = "conformal"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "entail_reward", least=0, most=1)
        check_distance(self)


@dataclass(frozen=True, kw_only=True)
class SyntaxMERUConfig(HyperbolicConfig):
    """Settings of Syntax-MERU ("Syntax-Preserving Hyperbolic Visual Semantic Embeddings")."""

    # weight of the syntax loss, mu, which the paper does not state; with the default, the two means of eq. 3 together
    # weigh as much as MERU's single entailment term
    syntax_weight: float = 0.1
    # initial and contextual state of a word. tower: input of the first block (token + position embedding) and state
    # after the last norm; block: input and output of one block; attention: input and output of the attention of one
    # block. Section 3 requires initial states "independent of context", which only the input of the first block is
    word_states: Literal["tower", "block", "attention"] = "tower"
    # block of the text tower that word_states=block and attention refer to, counted from 0
    word_block: int = 0
    # state of a word of several tokens: mean, the mean of its tokens' states; last, the state of its last token
    word_vector: Literal["mean", "last"] = "mean"
    # reduction over the edges and over the words of a caption: mean; or sum, as in eq. 3, which gives long captions
    # more weight. The result is averaged over captions in both cases
    syntax_reduction: Reduction = "mean"
    # the two directions of the contrastive loss: mean, as in MERU; or sum, as in eq. 6
    contrast_directions: Reduction = "mean"
    # weight of an edge by spaCy's dependency label (nsubj, dobj, amod, ...); labels without a value have weight 1
    relation_weights: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weights("relation_weights", self.relation_weights, RELATIONS, kind="a dependency label")
        check_range(self, "syntax_weight", least=0, below=math.inf)
        if self.text.name == TRANSFORMERS and self.word_states != "tower":
            raise UserError(
                f"word_states={self.word_states}: a text tower of {TRANSFORMERS} has word_states=tower only"
            )
        if self.text.name == CACHED:
            return  # the stored states are those of the frozen tower
        if self.text.name and self.word_states == "attention":
            raise UserError(
                f"word_states=attention: {self.text.name} exposes inputs and outputs of full blocks only; use block or "
                "tower"
            )
        check_range(self, "word_block", least=0, most=self.text.layers - 1)


def check_weights(key: str, weights: dict[str, float], names: Sequence[str], kind: str = "a term of the loss") -> None:
    """Raise UserError unless `weights` maps some of `names`, each of which is `kind`, to finite numbers from 0 on."""
    unknown = sorted(set(weights) - set(names))
    if unknown:
        raise UserError(f"{key}: {unknown[0]!r} is not {kind}; give one of {', '.join(names)}")
    for name, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise UserError(f"{key}.{name} is {weight}; give 0 or more")


def check_boxes(use_boxes: bool, boxes_as_pairs: bool) -> None:
    """Raise UserError if boxes are used in two ways."""
    if use_boxes and boxes_as_pairs:
        raise UserError(
            "use_boxes and boxes_as_pairs are both true, but a box is used either as a general concept of its image "
            "or as an additional pair; set one to false"
        )


def check_distance(config: HyperbolicConfig) -> None:
    """Raise UserError if the logits are inner products, in a model that has none."""
    if config.logits != "distance":
        raise UserError(f"logits is {config.logits}, but this model compares points by distance only; use distance")
