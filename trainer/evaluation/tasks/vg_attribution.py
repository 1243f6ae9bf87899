"""VG-Attribution of ARO: which attribute belongs to which of two objects."""

from trainer.evaluation.tasks.aro import aro_task, attribute_pair

TASK = aro_task(
    "vg_attribution",
    "VG-Attribution",
    "aro/visual_genome_attribution.json",
    "28,748 cases in 4,517 images; 1 GB together with VG-Relation",
    attribute_pair,
)
