"""What arms gain over a base arm, run by run: in accuracy, and in measurements of rank, collapse and bias."""

import numpy as np
import pandas as pd

from fedjax_collapse.core.records import UserError
from fedjax_collapse.results.comparing import pairs
from fedjax_collapse.results.metrics import ACCURACY
from fedjax_collapse.results.study import Results
from fedjax_collapse.schema.names import check_name

METRICS = {  # by the name of its gain; measurements as ``configs/rank_and_accuracy.py`` names them
    "effective_rank": "effective_rank",
    "nc1": "measured/nc/nc1",
    "bias": "measured/head/prediction_bias",
    "probe": "measured/probe/accuracy",
    "personal_rank": "measured/personal/effective_rank_mean",
    "local_r": "R_mean",
    "personal_r": "measured/personal/R_mean",
}
LEAST = 5  # points of a correlation
RISE = 1.0  # dimensions; a smaller gain in rank is not counted as a rise
_CELL, _RUN = ["setting", "arm"], ["setting", "arm", "seed"]
_KIND = ["rank_rises", "bias_falls", "probe_rises"]


def gains(study: Results, base: str, score: str = ACCURACY.name) -> pd.DataFrame:
    """Returns the gain of each run of the other arms over the base arm's run with the same seed and partition.

    A row for each pair of finished runs (``comparing.pairs``), by setting, arm and seed, after the last round:
    ``accuracy``, which is the gain in the metric ``score``, and the gains in ``METRICS``. Gains in accuracies, also of
    the probe, are in percentage points; NC1 is its natural logarithm. NaN where nothing was recorded.

    Raises:
        UserError: the study has no such arm, or no pair of runs has the score.
    """
    found = _over(study, base, score)
    if found["accuracy"].isna().all():
        raise UserError(f"{study.path}: no arm has a run with {score} of equal seed and partition as {base!r}")
    return found


def _over(study, base, score):
    """Returns the same without rows if there are no pairs."""
    check_name(f"base arm of {study.path}", base, study.arms)
    last = study.frame.groupby(_RUN, sort=False).tail(1).set_index(_RUN)
    last = last.reindex(columns=[score, *METRICS.values()]).astype(float).set_axis(["accuracy", *METRICS], axis=1)
    last["nc1"] = np.log(last["nc1"].where(last["nc1"] > 0))
    cells = dict.fromkeys(run.cell for run in study.runs if run.arm != base)
    runs = [(run.setting, run.arm, run.seed) for cell in cells for run, _ in pairs(study, cell, base)]
    found = last.loc[runs] - last.loc[[(setting, base, seed) for setting, _, seed in runs]].to_numpy()
    return found * [ACCURACY.factor if name in ("accuracy", "probe") else 1 for name in found]


def arm_means(runs: pd.DataFrame) -> pd.DataFrame:
    """Returns the means over seeds of rows by setting, arm and seed."""
    return runs.groupby(level=_CELL, sort=False).mean()


def correlations(found: pd.DataFrame) -> pd.DataFrame:
    """Returns a row for each setting in the result of ``gains``.

    These are the numbers of arms, of those that gain rank, accuracy, and both, and Spearman's correlations, over the
    arms' means, of the gain in accuracy with each other gain; NaN with fewer than ``LEAST`` arms.
    """
    rows = {}
    for setting, means in arm_means(found).groupby(level="setting", sort=False):
        rank, accuracy = means["effective_rank"] > 0, means["accuracy"] > 0
        counts = {"arms": len(means), "higher_rank": sum(rank), "and_higher_accuracy": sum(rank & accuracy)}
        rho = means.corr("spearman", LEAST)["accuracy"].drop("accuracy")
        rows[setting] = {**counts, "higher_accuracy": sum(accuracy), **rho}
    return pd.DataFrame.from_dict(rows, orient="index")


def kinds(found: pd.DataFrame) -> pd.DataFrame:
    """Divides the arms of all settings by whether rank rises (``RISE``), bias falls and the probe's accuracy rises.

    By their means over seeds in the result of ``gains``; arms without one of the three are left out. For each kind: the
    number of arms, how many gain accuracy in the mean and in all seeds, and the mean gain.
    """
    means = arm_means(found).dropna(subset=["effective_rank", "bias", "probe"])
    signs = [means["effective_rank"] >= RISE, means["bias"] < 0, means["probe"] > 0]
    rows = pd.DataFrame(dict(zip(_KIND, signs, strict=True)) | {"accuracy": means["accuracy"]})
    rows["higher"], rows["always"] = rows["accuracy"] > 0, arm_means(found[["accuracy"]] > 0)["accuracy"] == 1
    of_kind = rows.groupby(_KIND)
    table = of_kind.agg(arms=("higher", "size"), higher_accuracy=("higher", "sum"), in_all_seeds=("always", "sum"))
    every = pd.MultiIndex.from_product([(True, False)] * len(_KIND), names=_KIND)
    return table.reindex(every, fill_value=0).assign(accuracy=of_kind["accuracy"].mean())


def energies(study: Results, base: str, metric: str = "measured/adapters/beyond_2") -> pd.DataFrame:
    """Returns the energy of adapters beyond a rank, and the accuracy, of each finished run with this measurement.

    By setting, arm and seed: ``first`` and ``last``, the metric when it was first and last measured, and the server's
    ``effective_rank`` then; ``accuracy`` after the last round in percent, and its ``gain`` over the run of the base
    arm with the same seed on the same partition, in points (NaN without one).

    Raises:
        UserError: the study has no such arm, or no finished run has the metric.
    """
    check_name("measurement", metric, study.measurements)
    measured = study.finished().frame.dropna(subset=[metric]).groupby(_RUN, sort=False)
    accuracy = ACCURACY.factor * study.final[ACCURACY.name]
    found = {"first": measured[metric].first(), "last": measured[metric].last()}
    found["effective_rank"] = measured["measured/adapters/effective_rank"].last()
    return pd.DataFrame(found).assign(accuracy=accuracy, gain=_over(study, base, ACCURACY.name)["accuracy"])


def energy_correlations(runs: pd.DataFrame) -> pd.DataFrame:
    """Returns Spearman's correlations with the last energy in the result of ``energies``, a row for each setting.

    Of accuracy, over the arms' means, and of the gain, over all runs that have one, each with its number of points. An
    arm with a run whose accuracy is not finite is left out of the former.
    """
    rows = {}
    for setting, own in runs.groupby(level="setting", sort=False):
        means = own.groupby(level="arm").agg(lambda values: values.mean(skipna=False))
        over_arms, over_runs = (of.corr("spearman", LEAST)["last"] for of in (means, own))
        rows[setting] = {"arms": over_arms["accuracy"], "n_arms": len(means)}
        rows[setting] |= {"runs": over_runs["gain"], "n_runs": own["gain"].count()}
    return pd.DataFrame.from_dict(rows, orient="index")
