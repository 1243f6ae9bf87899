"""The pipeline on Ray: CPU steps as tasks, models as a pool of actors; only this folder of the pipeline imports Ray.

    run.py      join the cluster, compute the shards
    driver.py   which shard takes which step next
    calls.py    start a step on the cluster, follow it, stop it
    models.py   the pool of model workers
    remote.py   the code that runs in workers
    errors.py   what a failed call means
    metrics.py  figures for Prometheus
    cluster.py  nodes, and requests that none of them can meet

The table of a shard moves between workers through the object store; the driver holds references only.
"""
