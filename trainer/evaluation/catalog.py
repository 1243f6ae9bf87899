"""The evaluation tasks and the data sets of classification: one table each, which `--help` prints without torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trainer.evaluation.task import Embedder, TaskOptions, TaskResult

DATA: Final = Path(__file__).with_name("data")


@dataclass(frozen=True, kw_only=True)
class Task:
    """An evaluation task."""

    name: str
    title: str
    files: tuple[str, ...]
    """Paths below the data folder."""
    size: str
    source: str
    license: str
    location: str = ""
    """MODULE:FUNCTION that evaluates a model; by default, `evaluate` of trainer.evaluation.tasks.NAME."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "location", self.location or f"trainer.evaluation.tasks.{self.name}:evaluate")

    def evaluate(self, embedder: "Embedder", root: Path, options: "TaskOptions") -> "TaskResult":
        """Evaluate a model on the data folder.

        Raises MissingFilesError, UnsuitableModelError, and UserError for malformed annotations.
        """
        module, _, function = self.location.partition(":")
        result: TaskResult = getattr(import_module(module), function)(embedder, root, options)
        return result


@dataclass(frozen=True, kw_only=True)
class SetInfo:
    """The size of a set for classification, MERU's prompts (table 8), and where its files are.

    `n_images` counts the test split (MERU, table 6), whose `files` are below DATA/KEY; `train_files` are those of the other
    splits. `names` are those of the classes if the files have none. torchvision downloads `archives`, address -> MD5, of
    `gb` 10^9 bytes together; unpacked in DATA/KEY/`into`, they give DATA/KEY/`folder`.
    """

    key: str
    n_classes: int
    n_images: int
    n_train: int = 0
    n_val: int = 0
    files: str = ""
    train_files: str = ""
    prompts: tuple[str, ...]
    names: tuple[str, ...] = ()
    names_source: str = ""
    wnids: tuple[str, ...] = ()
    archives: Mapping[str, str] = field(default_factory=dict)
    gb: float = 0
    license: str = ""
    folder: str = ""
    into: str = ""


@cache
def set_infos() -> dict[str, SetInfo]:
    """The 20 data sets by key, in the order of the papers' tables."""
    table: dict[str, dict[str, Any]] = json.loads((DATA / "zero_shot.json").read_text(encoding="utf-8"))
    for row in table.values():
        row |= {name: tuple(value) for name, value in row.items() if isinstance(value, list)}
    return {key: SetInfo(key=key, **row) for key, row in table.items()}


def analysis(
    name: str,
    title: str,
    size: str,
    source: str = "shards of the pipeline that were not used for training",
    files: tuple[str, ...] = ("held_out/00000.tar",),
    license: str = "that of the shards",
) -> Task:
    """An analysis, by default of held-out shards."""
    facts = {"title": title, "files": files, "size": size, "source": source, "license": license}
    return Task(name=name, location=f"trainer.analyses.{name}:evaluate", **facts)  # type: ignore[arg-type]


PATHS: Final = (
    "any images; 751 texts; grounded Flickr30k: 17 shards; or held-out shards alone",
    "pexels.com and the repository of MERU; grounded Flickr30k as used by GLIP; shards of the pipeline",
    ("traversal/*.jpg", "traversal/pexels_text.json", "flickr30k_grounded/train-0000.tsv", "held_out/00000.tar"),
    "Pexels; CC BY-NC 4.0; Flickr30k: non-commercial research",
)
"""Size, source, files and license of the analyses of paths."""
WORDNET: Final = "WordNet 3.0 (words that the repository contains)"
LICENSE: Final = "WordNet 3.0 license"

LIST: Final = (
    Task(
        name="classification",
        title="Zero-shot image classification on 20 data sets",
        files=(
            *(f"{key}/{info.files}" for key, info in set_infos().items()),
            "KEY/CLASS/IMAGE for any of the 20 keys, with optional KEY/classnames.txt and KEY/indices.txt",
            "own/NAME/CLASS/IMAGE for other sets, with optional own/NAME/{classnames.txt,prompts.txt}",
        ),
        size="259,000 images in 20 data sets, about 25 GB; each set is optional",
        source="the data sets' own pages; prompts: MERU, table 8 (arXiv 2304.09172)",
        license="the terms of each data set; most allow non-commercial research only",
    ),
    Task(
        name="retrieval",
        title="Zero-shot retrieval on COCO val2017, Flickr30k and sets of one's own",
        files=(
            "coco/annotations/captions_val2017.json",
            "coco/val2017/000000000139.jpg",
            "flickr30k/dataset_flickr30k.json",
            "flickr30k/flickr30k_images/1007129816.jpg",
            "retrieval/NAME.csv or NAME.jsonl (columns image, caption; a row for each caption)",
            "retrieval/NAME.json (Karpathy's layout)",
            "retrieval/NAME/*.jpg",
        ),
        size="5,000 images with 25,014 captions (1 GB); 1,000 images with 5,000 captions (150 MB)",
        source="cocodataset.org; Karpathy's splits (dataset_flickr30k.json) and the Flickr30k images",
        license="captions of COCO: CC BY 4.0; images: Flickr's terms of use; Flickr30k: non-commercial research",
    ),
    Task(
        name="hierarchical",
        title="Hierarchical classification (ImageNet, WordNet)",
        files=("imagenet/val/WNID/*.JPEG", "own/NAME/{tree.txt,CLASS/IMAGE}"),
        size="50,000 images, 6.3 GB",
        source="https://www.image-net.org",
        license="non-commercial research (images); WordNet 3.0 license (tree)",
    ),
    Task(
        name="vlchecklist",
        title="VL-CheckList",
        files=(
            "vl_checklist/corpus/v1/TYPE/COLUMN/CORPUS.yaml",
            "vl_checklist/data/**/*.json",
            "vl_checklist/vg/VG_100K/*.jpg",
            "vl_checklist/vg/VG_100K_2/*.jpg",
            "vl_checklist/swig/*.jpg",
            "vl_checklist/hake/**/*.jpg",
        ),
        size="56 files of up to 31,000 pairs; the images of Visual Genome are 15 GB",
        source="https://github.com/om-ai-lab/VL-CheckList",
        license="free for non-commercial use; the images of Visual Genome have CC BY 4.0",
    ),
    Task(
        name="sugarcrepe",
        title="SugarCrepe",
        files=(
            "sugarcrepe/replace_obj.json",
            "sugarcrepe/replace_att.json",
            "sugarcrepe/replace_rel.json",
            "sugarcrepe/swap_obj.json",
            "sugarcrepe/swap_att.json",
            "sugarcrepe/add_obj.json",
            "sugarcrepe/add_att.json",
            "coco/val2017/*.jpg",
        ),
        size="7,511 pairs of captions of 1,560 images; COCO val2017 is 1 GB",
        source="https://github.com/RAIVNLab/sugar-crepe",
        license="MIT (annotations); the images have the licenses of Flickr",
    ),
    Task(
        name="vg_attribution",
        title="VG-Attribution",
        files=("aro/visual_genome_attribution.json", "aro/images/*.jpg"),
        size="28,748 cases in 4,517 images; 1 GB together with VG-Relation",
        source="https://github.com/mertyg/vision-language-models-are-bows",
        license="MIT (annotations); the images of Visual Genome have CC BY 4.0",
        location="trainer.evaluation.tasks.aro:evaluate_attribution",
    ),
    Task(
        name="vg_relation",
        title="VG-Relation",
        files=("aro/visual_genome_relation.json", "aro/images/*.jpg"),
        size="23,937 cases in 5,316 images; 1 GB together with VG-Attribution",
        source="https://github.com/mertyg/vision-language-models-are-bows",
        license="MIT (annotations); the images of Visual Genome have CC BY 4.0",
        location="trainer.evaluation.tasks.aro:evaluate_relation",
    ),
    Task(
        name="hierarcaps",
        title="HierarCaps and PEP",
        files=(
            "hierarcaps/hierarcaps_test.csv",
            "hierarcaps/hierarcaps_test_expanded.csv (optional; columns positive, negative, image_url)",
            "hierarcaps/test_imgs/*.jpg (or coco/val2014/*.jpg)",
        ),
        size="1,000 images with 4,000 captions, 0.2 GB",
        source="https://github.com/TAU-VAILab/hierarcaps",
        license="none stated (captions); the images of COCO have the licenses of Flickr",
    ),
    Task(
        name="chains",
        title="Own chains of captions, such as animal, dog, red dog, the caption",
        files=("chains/NAME.csv (columns captions, image)", "chains/NAME/*.jpg (optional)"),
        size="any number of chains; all chains of a file have the same length",
        source="your own; the columns are those of HierarCaps",
        license="that of your files",
    ),
    Task(
        name="himo",
        title="HiMo@K: does each sentence that a caption adds raise its score?",
        files=("himo/himo_docci_data.json", "docci/images/test_00000.jpg"),
        size="1,000 images with 2 to 17 captions each, 3 GB",
        source="https://github.com/UnicomAI/HiMo-CLIP (captions); https://google.github.io/docci (images)",
        license="Apache 2.0 (captions of HiMo-CLIP); CC BY 4.0 (DOCCI)",
    ),
    Task(
        name="multilabel",
        title="Multi-label mAP, and distances of images against the Hamming distances of their objects",
        files=(
            "voc2007/VOCdevkit/VOC2007/{ImageSets/Main/CLASS_test.txt,JPEGImages/*.jpg}",
            "coco/annotations/instances_val2017.json",
            "coco/val2017/*.jpg",
            "multilabel/NAME.csv (columns image, labels)",
            "multilabel/NAME/*.jpg",
        ),
        size="4,952 images of 20 classes (0.5 GB); 5,000 images of 80 classes (1 GB)",
        source="host.robots.ox.ac.uk/pascal/VOC/voc2007; cocodataset.org; ComCo and SimCo: https://clip-oscope.github.io",
        license="Flickr's terms of use (VOC, images of COCO); CC BY 4.0 (annotations of COCO)",
    ),
    Task(
        name="detection",
        title="Classification of ground-truth boxes (COCO, 17 novel categories)",
        files=("coco/annotations/instances_val2017.json", "coco/val2017/*.jpg"),
        size="about 33,000 boxes in 4,836 images, 1 GB",
        source="https://cocodataset.org",
        license="CC BY 4.0 (annotations); the images have the licenses of Flickr",
    ),
    Task(
        name="linear_probe",
        title="Linear probe",
        files=(
            *(f"{key}/{info.train_files}" for key, info in set_infos().items() if info.train_files),
            "KEY/{train,val,test}/CLASS/IMAGE for any of the 19 keys, also below linear_probe/",
        ),
        size="19 sets, 0.1 to 12 GB each",
        source="the sets of zero-shot classification; their test files are needed too",
        license="those of the sets",
    ),
    analysis("traversal", "Image traversals to the root", *PATHS),
    analysis("interpolation", "Interpolation between two images", *PATHS),
    analysis(
        "norms",
        "Distances of texts, images, phrases and boxes from the root",
        "129,024 samples in HyCoCLIP's figure; any number works",
    ),
    analysis("horopca", "HoroPCA of texts, images, phrases and boxes", "200 samples"),
    analysis("cosne", "CO-SNE of texts, images, phrases and boxes", "200 samples"),
    analysis(
        "factors",
        "Factors of PHyCLIP: norms of compositions, and retrieval by the factor-wise maximum",
        "four compositions; retrieval among the images of held-out shards",
        "prompts of PHyCLIP; shards of the pipeline that were not used for training",
    ),
    analysis(
        "words", "Words by factor: WordNet groups, and HoroPCA of families", "about 600 words", WORDNET, (), LICENSE
    ),
    analysis(
        "syntax_edges",
        "Edges of dependency trees: words and their heads",
        "any number of captions with parses",
        "shards train/ of the pipeline that were not used for training",
    ),
    analysis(
        "levels",
        "Taxonomies: classification by level, on seen and on unseen classes",
        "any number of samples with levels",
        "shards of the pipeline with read.levels, not used for training; those in unseen/ have other classes",
        ("held_out/00000.tar", "unseen/00000.tar (optional)"),
    ),
    analysis("order", "Order and entailment of texts, images, phrases and boxes", "any number of samples"),
)

TASKS: Final[Mapping[str, Task]] = {task.name: task for task in LIST}
"""The tasks by name, in the order in which they run."""


def describe_tasks() -> str:
    """The tasks with files, size, source and license, as `--help` prints them."""
    lines = []
    for task in TASKS.values():
        lines += [f"  {task.name}: {task.title}", f"      size: {task.size}"]
        lines += [f"      source: {task.source}", f"      license: {task.license}"]
        lines += [] if task.files else ["      files: none"]
        lines += [f"      {'files: ' if i == 0 else '       '}DATA/{file}" for i, file in enumerate(task.files)]
    return "\n".join(lines)
