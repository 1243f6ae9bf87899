"""The evaluation tasks: one table. `--help` prints it without importing the tasks, and so without torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trainer.evaluation.task import Embedder, TaskOptions, TaskResult


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
    location: str
    """MODULE:FUNCTION that evaluates a model."""

    def evaluate(self, embedder: "Embedder", root: Path, options: "TaskOptions") -> "TaskResult":
        """Evaluate a model on the data folder.

        Raises MissingFilesError, UnsuitableModelError, and UserError for malformed annotations.
        """
        module, _, function = self.location.partition(":")
        result: TaskResult = getattr(import_module(module), function)(embedder, root, options)
        return result


def on_held_out(
    name: str, title: str, size: str, source: str = "shards of the pipeline that were not used for training"
) -> Task:
    """An analysis of held-out shards."""
    return Task(
        name=name,
        title=title,
        files=("held_out/00000.tar",),
        size=size,
        source=source,
        license="that of the shards",
        location=f"trainer.analyses.{name}:evaluate",
    )


LIST: Final = (
    Task(
        name="classification",
        title="Zero-shot image classification on 20 data sets",
        files=(
            "imagenet/val/WNID/*.JPEG",
            "food101/food-101/{meta/test.txt,meta/classes.txt,images/CLASS/ID.jpg}",
            "cifar10/cifar-10-batches-bin/{test_batch.bin,batches.meta.txt}",
            "cifar100/cifar-100-binary/{test.bin,fine_label_names.txt}",
            "cub2011/CUB_200_2011/{images,image_class_labels,train_test_split,classes}.txt and images/",
            "sun397/SUN397/{ClassName.txt,test.txt or Testing_01.txt,a/abbey/*.jpg}",
            "cars/{devkit/cars_meta.mat,cars_test_annos_withlabels.mat,cars_test/*.jpg}",
            "aircraft/fgvc-aircraft-2013b/data/{images_variant_test.txt,variants.txt,images/ID.jpg}",
            "dtd/dtd/{labels/test1.txt,images/CLASS/IMAGE.jpg}",
            "pets/oxford-iiit-pet/{annotations/test.txt,images/NAME.jpg}",
            "caltech101/{test.txt,101_ObjectCategories/CLASS/IMAGE.jpg}",
            "flowers102/flowers-102/{setid.mat,imagelabels.mat,jpg/image_00001.jpg}",
            "stl10/stl10_binary/{test_X.bin,test_y.bin,class_names.txt}",
            "eurosat/2750/CLASS/*.jpg and indices.txt",
            "resisc45/NWPU-RESISC45/CLASS/*.jpg and indices.txt",
            "country211/test/CODE/*.jpg and classnames.txt",
            "mnist/MNIST/raw/{t10k-images-idx3-ubyte,t10k-labels-idx1-ubyte}[.gz]",
            "clevr/CLEVR_v1.0/{scenes/CLEVR_val_scenes.json,images/val/*.png}",
            "pcam/camelyonpatch_level_2_split_test_{x,y}.h5 and classnames.txt",
            "sst2/rendered-sst2/test/{negative,positive}/*.png",
            "KEY/CLASS/IMAGE for any of the 20 keys, with optional KEY/classnames.txt and KEY/indices.txt",
            "own/NAME/CLASS/IMAGE for other sets, with optional own/NAME/{classnames.txt,prompts.txt}",
        ),
        size="259,000 images in 20 data sets, about 25 GB; each set is optional",
        source="the data sets' own pages; prompts: MERU, table 8 (arXiv 2304.09172)",
        license="the terms of each data set; most allow non-commercial research only",
        location="trainer.evaluation.tasks.classification:evaluate",
    ),
    Task(
        name="retrieval",
        title="Zero-shot retrieval on COCO val2017 and Flickr30k",
        files=(
            "coco/annotations/captions_val2017.json",
            "coco/val2017/000000000139.jpg",
            "flickr30k/dataset_flickr30k.json",
            "flickr30k/flickr30k_images/1007129816.jpg",
        ),
        size="5,000 images with 25,014 captions (1 GB); 1,000 images with 5,000 captions (150 MB)",
        source="cocodataset.org; Karpathy's splits (dataset_flickr30k.json) and the Flickr30k images",
        license="captions of COCO: CC BY 4.0; images: Flickr's terms of use; Flickr30k: non-commercial research",
        location="trainer.evaluation.tasks.retrieval:evaluate",
    ),
    Task(
        name="hierarchical",
        title="Hierarchical classification (ImageNet, WordNet)",
        files=("imagenet/val/WNID/*.JPEG", "own/NAME/{tree.txt,CLASS/IMAGE}"),
        size="50,000 images, 6.3 GB",
        source="https://www.image-net.org",
        license="non-commercial research (images); WordNet 3.0 license (tree)",
        location="trainer.evaluation.tasks.hierarchical:evaluate",
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
        location="trainer.evaluation.tasks.vlchecklist:evaluate",
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
        location="trainer.evaluation.tasks.sugarcrepe:evaluate",
    ),
    Task(
        name="vqa",
        title="Questions with answers to choose from, on six data sets (HAC)",
        files=("vqa/{aokvqa,mmstar,seedbench,scienceqa,realworldqa,ai2d}/{questions.json,images/*.jpg}",),
        size="1,145 to 14,000 questions each; each set is optional",
        source="the data sets' own pages; questions.json: [{image, question, options, answer}], written by you",
        license="the terms of each data set",
        location="trainer.evaluation.tasks.vqa:evaluate",
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
        location="trainer.evaluation.tasks.hierarcaps:evaluate",
    ),
    Task(
        name="chains",
        title="Own chains of captions, such as animal, dog, red dog, the caption",
        files=("chains/NAME.csv (columns captions, image)", "chains/NAME/*.jpg (optional)"),
        size="any number of chains, all of one file of the same length",
        source="your own; the columns are those of HierarCaps",
        license="that of your files",
        location="trainer.evaluation.tasks.chains:evaluate",
    ),
    Task(
        name="himo",
        title="HiMo@K: does each sentence that a caption adds raise its score?",
        files=("himo/himo_docci_data.json", "docci/images/test_00000.jpg"),
        size="1,000 images with 2 to 17 captions each, 3 GB",
        source="https://github.com/UnicomAI/HiMo-CLIP (captions); https://google.github.io/docci (images)",
        license="Apache 2.0 (captions of HiMo-CLIP); CC BY 4.0 (DOCCI)",
        location="trainer.evaluation.tasks.himo:evaluate",
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
        location="trainer.evaluation.tasks.multilabel:evaluate",
    ),
    Task(
        name="detection",
        title="Classification of ground-truth boxes (COCO, 17 novel categories)",
        files=("coco/annotations/instances_val2017.json", "coco/val2017/*.jpg"),
        size="about 33,000 boxes in 4,836 images, 1 GB",
        source="https://cocodataset.org",
        license="CC BY 4.0 (annotations); the images have the licenses of Flickr",
        location="trainer.evaluation.tasks.detection:evaluate",
    ),
    Task(
        name="linear_probe",
        title="Linear probe",
        files=(
            "aircraft/fgvc-aircraft-2013b/data/images_variant_{train,val}.txt",
            "caltech101/train.txt",
            "cars/{devkit/cars_train_annos.mat,cars_train/*.jpg}",
            "cifar10/cifar-10-batches-bin/data_batch_{1,2,3,4,5}.bin",
            "cifar100/cifar-100-binary/train.bin",
            "clevr/CLEVR_v1.0/{scenes/CLEVR_train_scenes.json,images/train/*.png}",
            "country211/{train,valid}/CODE/*.jpg",
            "dtd/dtd/labels/{train,val}1.txt",
            "eurosat/indices_{train,val}.txt and indices.txt, numbers in the order of the files",
            "food101/food-101/meta/train.txt",
            "mnist/MNIST/raw/train-{images-idx3,labels-idx1}-ubyte[.gz]",
            "pcam/camelyonpatch_level_2_split_{train,valid}_{x,y}.h5",
            "pets/oxford-iiit-pet/annotations/trainval.txt",
            "resisc45/indices_{train,val}.txt and indices.txt",
            "sst2/rendered-sst2/{train,valid}/{negative,positive}/*.png",
            "stl10/stl10_binary/train_{X,y}.bin",
            "sun397/SUN397/{train.txt or Training_01.txt}",
            "KEY/{train,val,test}/CLASS/IMAGE for any of the 19 keys, also below linear_probe/",
        ),
        size="19 sets, 0.1 to 12 GB each",
        source="the sets of zero-shot classification; their test files are needed too",
        license="those of the sets",
        location="trainer.evaluation.tasks.linear_probe:evaluate",
    ),
    Task(
        name="traversal",
        title="Image traversals to the root",
        files=(
            "traversal/*.jpg",
            "traversal/pexels_text.json",
            "flickr30k_grounded/train-0000.tsv",
            "held_out/00000.tar",
        ),
        size="any images; 751 texts; grounded Flickr30k: 17 shards; or held-out shards alone",
        source="pexels.com and the repository of MERU; grounded Flickr30k as used by GLIP; shards of the pipeline",
        license="Pexels; CC BY-NC 4.0; Flickr30k: non-commercial research",
        location="trainer.analyses.traversal:evaluate",
    ),
    Task(
        name="interpolation",
        title="Interpolation between two images",
        files=(
            "traversal/*.jpg",
            "traversal/pexels_text.json",
            "flickr30k_grounded/train-0000.tsv",
            "held_out/00000.tar",
        ),
        size="any images; 751 texts; grounded Flickr30k: 17 shards; or held-out shards alone",
        source="pexels.com and the repository of MERU; grounded Flickr30k as used by GLIP; shards of the pipeline",
        license="Pexels; CC BY-NC 4.0; Flickr30k: non-commercial research",
        location="trainer.analyses.interpolation:evaluate",
    ),
    on_held_out(
        "norms",
        "Distances of texts, images, phrases and boxes from the root",
        "129,024 samples in HyCoCLIP's figure; any number works",
    ),
    on_held_out("horopca", "HoroPCA of texts, images, phrases and boxes", "200 samples"),
    on_held_out("cosne", "CO-SNE of texts, images, phrases and boxes", "200 samples"),
    on_held_out(
        "factors",
        "Factors of PHyCLIP: norms of compositions, and retrieval by the factor-wise maximum",
        "four compositions; retrieval among the images of held-out shards",
        "prompts of PHyCLIP; shards of the pipeline that were not used for training",
    ),
    Task(
        name="words",
        title="Words by factor: WordNet groups, and HoroPCA of families",
        files=(),
        size="about 600 words",
        source="WordNet 3.0 (words that the repository contains)",
        license="WordNet 3.0 license",
        location="trainer.analyses.words:evaluate",
    ),
    Task(
        name="distortion",
        title="Distances of texts against trees, products of trees and a Boolean lattice; Gromov's delta",
        files=("own/NAME/tree.txt (optional)",),
        size="about 500 texts, and 1,372 nodes of ImageNet's tree",
        source="WordNet 3.0 (words that the repository contains)",
        license="WordNet 3.0 license",
        location="trainer.analyses.distortion:evaluate",
    ),
    on_held_out(
        "syntax_edges",
        "Edges of dependency trees: words and their heads",
        "any number of captions with parses",
        "shards train/ of the pipeline that were not used for training",
    ),
    Task(
        name="levels",
        title="Taxonomies: classification by level, on seen and on unseen classes",
        files=("held_out/00000.tar", "unseen/00000.tar (optional)"),
        size="any number of samples with levels",
        source="shards of the pipeline with read.levels, not used for training; in unseen/ of other classes",
        license="that of the shards",
        location="trainer.analyses.levels:evaluate",
    ),
    on_held_out("order", "Order and entailment of texts, images, phrases and boxes", "any number of samples"),
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
