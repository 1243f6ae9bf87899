"""Search settings with Ray Tune: python docs/examples/tune.py OUTPUT CONFIG.yaml KEY=VALUE ... Paths are absolute."""

import json
import sys
from pathlib import Path

from ray import tune

from trainer.train import run


def trial(settings: dict[str, float], arguments: list[str], output: str) -> None:
    """Train once, and report the results of the evaluation."""
    name = "-".join(f"{key}={value:g}" for key, value in settings.items())
    run([*arguments, *(f"{key}={value}" for key, value in settings.items()), f"output={output}/{name}"])
    tune.report(json.loads(Path(output, name, "evaluation.json").read_text()))


def main(output: str, *arguments: str) -> None:
    """Run eight trials, each on one GPU; print the best settings."""
    train = tune.with_parameters(trial, arguments=list(arguments), output=output)
    found = tune.Tuner(
        tune.with_resources(train, {"cpu": 8, "gpu": 1}),
        param_space={"lr": tune.loguniform(1e-4, 2e-3), "optim.weight_decay": tune.choice([0.05, 0.2])},
        tune_config=tune.TuneConfig(metric="retrieval/text_to_image/recall@1", mode="max", num_samples=8),
    ).fit()
    print(found.get_best_result().config)


if __name__ == "__main__":
    main(*sys.argv[1:])
