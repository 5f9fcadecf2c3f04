"""FedPer and FedRep: every client keeps its head; FedRep trains it first, and then the body."""

from fedjax_collapse import FedAvg, Phase


def fedper(training, methods=()):
    """Body and head are trained jointly."""
    return FedAvg(training, dict(methods), private="head")


def fedrep(training, methods=(), head_epochs=10, body_epochs=1):
    """First the head for some epochs, then the body."""
    phases = (Phase("head", head_epochs), Phase("body", body_epochs))
    return FedAvg(training.replace(phases=phases), dict(methods), private="head")
