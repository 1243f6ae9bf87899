"""VG-Relation of ARO: which of two objects is the subject of a relation."""

from trainer.evaluation.tasks.aro import aro_task, relation

TASK = aro_task(
    "vg_relation",
    "VG-Relation",
    "aro/visual_genome_relation.json",
    "23,937 cases in 5,316 images; 1 GB together with VG-Attribution",
    relation,
)
