"""The measurement ``backdoor``: whether a patch makes the server's model see its target class."""

import numpy as np

from fedjax_collapse.methods.base import Setup
from fedjax_collapse.methods.robust.backdoor import Backdoor
from fedjax_collapse.run.evaluation import evaluate
from fedjax_collapse.run.measurement import MeasurementView


def backdoor(view: MeasurementView) -> dict[str, float]:
    """Success of the algorithm's backdoor, on test images of other classes than its target.

    ``success`` is the share that the server's model classes as the target with the patch, which has the largest value
    of the test set in each channel; ``without`` the same without the patch. Without the method ``backdoor``, they are
    of its default patch and target, as a control.
    """
    view.check_classes("backdoor")
    found = (method for method in view.algorithm.methods.values() if isinstance(method, Backdoor))
    method = next(found, Backdoor())
    method.check_with(Setup(view.algorithm.training, view.algorithm.private_part, view.model))
    test, others = view.federation.test, view.labels != int(method.target)
    images = np.asarray(test.inputs)
    patched = test._replace(inputs=method.patched(images, images.max(axis=(0, 1, 2))))

    def share(evaluation):
        is_target = np.argmax(evaluation.logits, axis=1)[others] == int(method.target)
        return float(np.mean(is_target)) if evaluation.is_finite and others.any() else np.nan

    of_patched = evaluate(view.model, view.server.variables, patched)
    return {"success": share(of_patched), "without": share(view.server.evaluation)}
