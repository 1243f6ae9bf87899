"""The models: which lift, which similarity, which pairs contrast, which entail. `names` has them by name."""
