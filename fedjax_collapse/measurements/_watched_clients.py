"""A number of each of several watched clients, as it is logged."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedjax_collapse.run.measurement import MeasurementView


def over_clients(view: MeasurementView, columns: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Returns each number of the watched clients: the value for one client, mean and range for several."""
    if view.num_watched == 1:
        return {name: values[0] if values else math.nan for name, values in columns.items()}
    kinds = {"mean": np.mean, "min": np.min, "max": np.max}
    return {
        f"{name}_{kind}": float(of(values)) if values else math.nan
        for name, values in columns.items()
        for kind, of in kinds.items()
    }
