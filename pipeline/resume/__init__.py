"""Continue a job: its record, what changed since, the finished shards, and the shards that remain."""
