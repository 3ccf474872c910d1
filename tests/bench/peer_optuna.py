"""Optuna's Gaussian-process sampler behind a pipe: a line of trials in, the next fraction out.

Runs in an environment of its own. Each line is {"low", "high", "seen": [[fraction, value], ...], "seed"}; the value is
to be maximised.
"""

from __future__ import annotations

import json
import sys
import warnings

import optuna  # type: ignore[import-not-found]  # it lives in its own environment
import torch  # type: ignore[import-not-found]  # it lives in its own environment


def next_fraction(low: float, high: float, seen: list[list[float]], seed: int) -> float:
    """Return what the sampler would try after these trials."""
    space = {"fraction": optuna.distributions.FloatDistribution(low, high)}
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.GPSampler(seed=seed, n_startup_trials=2, deterministic_objective=True),
    )
    for fraction, value in seen:
        trial = optuna.trial.create_trial(params={"fraction": fraction}, distributions=space, value=value)
        study.add_trial(trial)
    return float(study.ask(space).params["fraction"])


def main() -> None:
    """Answer every line of the standard input."""
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(next_fraction(**json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
