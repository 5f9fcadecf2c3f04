"""What each key of a config means for a run whose method adds noise to the mean upload.

A key that is named nowhere here is rejected: with any value but its default, such a run does not start.
"""

HARMLESS = (  # no value lets clients' data reach the server in another way
    "means", "paper", "title", "cohort.stragglers", "cohort.straggler_share", "data.source", "data.folder",
    "partition.name", "partition.alpha", "partition.seed", "own_tests.name", "finetuning", "network.weights",
    "network.adapters", "network.task", "training.epochs", "training.batch_size", "training.learning_rate",
    "training.momentum", "training.weight_decay", "training.augmentation", "server.optimizer.name",
    "server.optimized", "private",
    "keep_trained", "head", "evaluate_every", "watch", "measurements", "measure_every", "checkpoint_every",
    "save_local", "engine.clients_at_once", "engine.devices", "engine.runs", "engine.storage",
)  # fmt: skip
COUNTED = (  # epsilon depends on it, or is of one of its values
    "rounds", "seeds", "arms", "settings", "sweep", "clients", "participation", "privacy",
)  # fmt: skip
ACCEPTED = {  # other values are an error of ``guarantee.py`` or of the algorithm
    "cohort.sampler.name": "uniform, uniform_on_host and poisson, which are counted",
    "cohort.dropout": "with the sampler poisson, where it does not lower epsilon",
    "cohort.upload_loss": "with the sampler poisson, where it does not lower epsilon; likewise a clock with a deadline",
    "data.validation_fraction": "0, as scores on examples that may be of clients are not covered",
    "network.name": "without BatchNorm, or with server.batch_norm=local",
    "methods": "methods that change local training or the uploads before the clip; dp_fedavg is counted",
    "server.weighting": "expected",
    "server.batch_norm": "local, or any but recalibrate for a network without BatchNorm",
    "on_nan": "continue: an upload that is not finite counts as 0, and gets the same noise",
    "stop_at_accuracy": "for accuracy of the server's model on the common test set, which is taken as public",
    "engine.layout": "all but loop, which stops at a client that is not finite",
}


def is_rejected(path: str) -> bool:
    """Returns whether a key is rejected with any value but its default."""
    return path not in (*HARMLESS, *COUNTED, *ACCEPTED)
