"""Linear probe of the image tower on the 19 sets of MERU (appendix C): logistic regression on frozen features.

Features are the outputs of the tower before the projection. C is searched on the validation split, the classifier is
fitted to the training and validation splits, and the metric is the mean accuracy of the classes of the test split.

Shapes: n images, d width of the tower.
"""

from pathlib import Path
from statistics import fmean
from typing import Final

import torch
from torch import Tensor

from trainer.evaluation.embed import device_of
from trainer.evaluation.linear_probe import fit, search
from trainer.evaluation.metrics import macro_accuracy
from trainer.evaluation.sets.probe import TRAIN_FILES, Split, read_probe
from trainer.evaluation.tasks.base import Embedder, Task, TaskOptions, TaskResult
from trainer.evaluation.tasks.classification import evenly
from trainer.evaluation.tasks.examples import embed_sources
from trainer.evaluation.tasks.parts import Problems

NAMES: Final = tuple(TRAIN_FILES)


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Evaluate the sets that are present. The metrics are the accuracy of each set and their mean."""
    metrics: dict[str, float] = {}
    chance: dict[str, float] = {}
    rules = {"features": "image tower before its projection", "image": "center crop", "optimizer": "L-BFGS of torch"}
    found: dict[str, object] = {}
    problems = Problems()
    skipped: dict[str, int] = {}
    n_used = 0
    sums: dict[str, str] = {}
    for name in NAMES:
        with problems.of(name):
            data = read_probe(root, name)
            train, val, test = (
                embed_split(embedder, split.take(evenly(len(split.labels), options.max_examples)), skipped)
                for split in (data.train, data.val, data.test)
            )
            c, tried = search(train, val, data.n_classes)
            both = (torch.cat([train[0], val[0]]), torch.cat([train[1], val[1]]))
            predicted = fit(*both, data.n_classes, c).predict(test[0])
            metrics[f"{name}/accuracy"] = macro_accuracy(predicted.cpu(), test[1].cpu(), data.n_classes)
            chance[f"{name}/accuracy"] = 1 / data.n_classes
            sums |= data.checksums
            rules |= {f"{name}/{key}": rule for key, rule in data.rules.items()}
            found[name] = {"C": c, "validation": {f"{key:g}": value for key, value in sorted(tried.items())}}
            n_used += len(test[1])
    problems.require(
        metrics,
        f"{root} has none of the {len(NAMES)} sets with training images; expected the official files that --help "
        f"lists, such as {root}/dtd/dtd/labels/train1.txt, or plain folders {root}/KEY/{{train,val,test}}/CLASS/IMAGE",
    )
    return TaskResult(
        metrics=metrics | {"mean/accuracy": fmean(metrics.values())},
        chance=chance | {"mean/accuracy": fmean(chance.values())},
        rules=rules,
        n_used=n_used,
        skipped=skipped,
        checksums=sums,
        details=problems.details() | found,
    )


def embed_split(embedder: Embedder, split: Split, skipped: dict[str, int]) -> tuple[Tensor, Tensor]:
    """Features [n d] and labels [n] of the usable images, on the device of the model. Others are added to `skipped`."""
    images = embed_sources(embedder, split.images, trunk=True)
    for reason, n in images.skipped().items():
        skipped[reason] = skipped.get(reason, 0) + n
    device = device_of(embedder.model)
    labels = torch.tensor(split.labels)[images.usable]
    return images.features[images.rows[images.usable]].to(device), labels.to(device)


TASK = Task(
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
    evaluate=evaluate,
)
