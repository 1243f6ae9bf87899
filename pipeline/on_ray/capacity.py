"""The workers that the job would have on the cluster at hand."""

from pipeline.capacity import Capacity
from pipeline.config import PipelineConfig
from pipeline.on_ray.cluster import Cluster
from pipeline.on_ray.models import Models


def cluster_capacity(config: PipelineConfig) -> Capacity:
    """Return the capacity of the cluster that this process has joined, with the limits of the configuration."""
    cluster = Cluster()
    cluster.poll(now=True)
    cpus, gpus = cluster.total("CPU"), cluster.total("GPU")
    request = Models(b"", config).request(cluster)
    gpus_per_model = request.get("GPU", 0.0)
    models = gpus // gpus_per_model if gpus_per_model else max(1.0, cpus)
    tasks = cpus if gpus_per_model else 2 * cpus  # each requests half a CPU, like a model worker without a GPU
    limit = config.ray
    return Capacity(
        description=f"a cluster with {cpus:g} CPUs and {gpus:g} GPUs",
        cpus=cpus,
        tasks=min(tasks, limit.cpu_workers or tasks),
        models=min(models, limit.model_workers or models),
        gpus_per_model=gpus_per_model,
    )
