"""The pipeline on Ray: CPU steps as tasks, models as a pool of actors; only this folder of the pipeline imports Ray.

    run.py      join the cluster, compute the shards
    driver.py      which shard takes which step next
    work.py        the shards that wait, and the calls that run
    groups.py      a shard on its way, and the shards that share batches with it
    tables.py      the bytes of prepared tables
    calls.py       start a step on the cluster, follow it, stop it
    models.py      the pool of model workers
    remote.py      the code that runs in workers
    open_group.py  shards that share batches at a model worker
    failures.py    the consequences of a failed call
    errors.py      what a failed call means
    upkeep.py      follow the cluster between calls
    metrics.py     figures for Prometheus
    cluster.py     nodes, and requests that none of them can meet
    health.py      nodes to avoid

The table of a shard moves between workers through the object store; the driver holds references only.
"""
