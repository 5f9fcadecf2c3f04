"""The guarantee of a run whose method perturbs the mean upload: its checks, its epsilon, and its limits.

Rejected is what lets one client change more than its own clipped upload, or reach the server by another way: weights
by size, reports of other methods, a second pass of the cohort, draws that depend on sizes or on what clients return,
and an end of the run that depends on them. Accounted for are only rules and noise that are known here: of a subclass
that changes them, what it inherits says nothing.
"""

import dataclasses
import math
from typing import Annotated, Any

from fedjax_collapse.core.records import UserError
from fedjax_collapse.engine.participation import Clock, Participation
from fedjax_collapse.engine.samplers import HostUniform, Poisson, Uniform
from fedjax_collapse.run.privacy import accounting
from fedjax_collapse.run.privacy.accounting import ACCOUNTANTS, NEIGHBOURS, Mechanism
from fedjax_collapse.schema.options import Count, Interval, check_fields, option
from fedjax_collapse.training.algorithm import FedAvg

EPSILON = "epsilon/"  # prefix of the metric: epsilon/<delta>
AS_IF = "epsilon_as_if/"  # prefix for a federation other than the run's: epsilon_as_if/<delta>, <cohort> of <clients>
_SECOND = {  # hooks of other methods by which data reach the server otherwise than by the sum of uploads
    "measure": "measures the server's model on the clients' data",
    "dispatch": "makes the clients' states from those of all",
    "corrupt_uploads": "makes malicious uploads from those of others",
    "combine_uploads": "replaces the mean of the clipped uploads by its own result",
}
_ON_NAN = {"stop": "ends the run and names a client", "skip_client": "repeats a round"}
NOT_COVERED = {  # what a run writes besides the server's model, and whose data it reveals
    "clients.npz": "losses and scores of each client in its rounds",
    "metrics.jsonl": "means of these over a cohort (train/), the watched clients' models (R, local_), own tests (own/)",
    "spectra.npz": "of the watched clients' models",
    "measurements.npz": "those that use local models or examples of clients",
    "own_tests.npz": "scores of each client",
    "local": "models of watched clients before the server's step",
    "checkpoints": "states of all clients, and the key from which the noise can be computed again",
    "partition.npz": "numbers of examples of each client and class",
    "divergence.npz": "a batch of a client",
    "timing.jsonl": "the number of examples of a cohort",
}


@dataclasses.dataclass(frozen=True)
class Privacy:
    """What a run's privacy is accounted for.

    Args:
        delta: the delta of (epsilon, delta)-differential privacy, less than 1 / population.
        population: number of clients from which cohorts are drawn. It may exceed the run's clients; tables then say so.
        accountant: ``pld``, or the faster ``rdp``. None is ``pld``, but ``rdp`` for cohorts of a fixed size, for which
            there is no ``pld``.
        neighbours: neighbouring federations differ by a client that is added or removed, or by one that is replaced.
            None is ``add_or_remove``, but ``replace`` for cohorts of a fixed size.
    """

    delta: Annotated[float, Interval(0, 1, "()")]
    population: Count | None = None
    accountant: str | None = option(None, choices=(*ACCOUNTANTS, None))
    neighbours: str | None = option(None, choices=(*NEIGHBOURS, None))

    def check(self) -> None:
        """Raises UserError for an invalid value."""
        check_fields(self, "privacy")
        if self.population is None:
            raise UserError(
                "privacy: no population; expected the number of clients from which cohorts are drawn, as "
                "population=1000, for there is no epsilon without it"
            )
        if self.delta * self.population >= 1:
            raise UserError(
                f"privacy: delta {self.delta:g}: expected less than 1 / population, {1 / self.population:g}"
            )


def check(
    privacy: Privacy | None,
    algorithm: FedAvg,
    rule: Participation,
    rounds: int,
    num_clients: int,
    *,
    on_nan: str = "continue",
    is_compiled: bool = True,
    stops_at_own: bool = False,
    has_validation: bool = False,
) -> None:
    """Raises UserError if something breaks the guarantee of the method that perturbs the mean upload, if there is one.

    With ``privacy``, also if it cannot be accounted for. Computes and traces nothing. Reports that are only found by
    tracing a round are rejected there (``training/server.py``).

    Args:
        privacy: what is accounted for, if anything.
        algorithm: the algorithm.
        rule: the rules of participation.
        rounds: the number of rounds.
        num_clients: the number of clients.
        on_nan: what happens to clients that diverge; see ``Schedule``.
        is_compiled: False for the debug layout, which stops at a client that diverges.
        stops_at_own: whether the run ends at an accuracy on the clients' own rows, or of their own models.
        has_validation: whether there is a common validation set, which is held out from the training data.
    """
    for name, method in algorithm.having("perturb").items():
        what = f"method {name}"
        if "noise" not in vars(type(method)):
            raise UserError(
                f"{what}: {type(method).__name__} inherits its noise, which is accounted for, from a class whose "
                f"uploads it may change; expected that class itself, or a method noise of its own"
            )
        if algorithm.weights_by != "expected":
            raise UserError(
                f"{what}: weights of clients {algorithm.weights_by!r} depend on the other clients and are not bounded; "
                "expected server.weighting 'expected', which is the method's default"
            )
        if (last := list(algorithm.having("upload"))[-1:]) not in ([], [name]):
            raise UserError(f"methods {name} and {last[0]}: {last[0]} changes uploads after the clip; put {name} last")
        for hook, action in _SECOND.items():
            for other in algorithm.having(hook):
                raise UserError(f"methods {name} and {other}: {other} {action}, which the noise does not cover")
        for other, report in algorithm.methods.items():
            if other != name and _sends_report(report):
                raise UserError(
                    f"methods {name} and {other}: clients also send a report of {other}, which the noise does not "
                    "cover; choose one of them"
                )
        if on_nan != "continue":
            raise UserError(
                f"{what}: on_nan {on_nan!r} {_ON_NAN[on_nan]} depending on the clients' data; expected continue, the "
                "default with this method: an upload that is not finite counts as 0"
            )
        if not is_compiled:
            raise UserError(
                f"{what}: the debug layout (engine.layout loop) ends the run at a client that is not finite, depending "
                "on its data; choose another one"
            )
        if stops_at_own:
            raise UserError(
                f"{what}: stop_at_accuracy ends the run depending on the clients' own rows or models; leave it out"
            )
        if has_validation:
            raise UserError(
                f"{what}: data.validation_fraction: scores on examples that are held out from the training data, which "
                "may be of clients, are not covered by the noise; expected 0"
            )
        if type(algorithm) is not FedAvg:
            raise UserError(f"{what}: {type(algorithm).__name__} may send more than FedAvg; expected FedAvg itself")
        _check_rule(what, rule)
        bands, groups = method.noise(rule.expected_size(num_clients)).bands, _groups(rule)
        if bands > groups:
            raise UserError(
                f"{what}: bands {bands}: a client may take part in one of them only; expected cohort.sampler poisson "
                f"with groups={bands}, got {groups}"
            )
    if privacy is not None:
        found = mechanism(privacy, algorithm, rule, rounds, num_clients)
        accounting.check(found, privacy.delta, accountant_of(privacy, found))
        if not _method(algorithm).noise(rule.expected_size(num_clients)).multiplier:
            raise UserError("privacy: noise_multiplier 0: there is no epsilon without noise; leave privacy out")


def _sends_report(method):
    """Returns whether clients report to the server, as far as can be seen without tracing.

    ``finish`` returns a new memory and a report; without a memory, only the latter can be its purpose.
    """
    return method.has("combine") or (method.has("finish") and not method.has("init_memory"))


def _check_rule(what, rule):
    """Raises UserError for rules of participation by which a client changes who else takes part."""
    sampler = type(rule.sampler)
    if sampler not in (Uniform, HostUniform, Poisson):
        raise UserError(
            f"{what}: sampler {sampler.__name__} has no known amplification; expected Uniform or Poisson, in a config "
            "uniform or poisson"
        )
    for own, known in ((rule, Participation), (rule.clock, Clock)):
        if own is not None and type(own) is not known:
            raise UserError(
                f"{what}: {type(own).__name__} may change who takes part, which the accounting does not know; expected "
                f"{known.__name__} itself"
            )
    for option_, is_given in (
        ("dropout", rule.dropout is not None),
        ("upload_loss", rule.upload_loss is not None),
        ("clock.deadline", rule.has_deadline),
    ):
        if is_given and not rule.sampler.may_be_empty:
            raise UserError(
                f"{what}: cohort.{option_}: at least one client is counted, which depends on the others; "
                "expected the sampler poisson, whose cohorts may be empty"
            )


def mechanism(privacy: Privacy, algorithm: FedAvg, rule: Participation, rounds: int, num_clients: int) -> Mechanism:
    """Returns the mechanism that is accounted for.

    Raises:
        UserError: a value is invalid, or no method perturbs the mean upload.
    """
    privacy.check()
    method = _method(algorithm)
    if privacy.population < num_clients:
        raise UserError(
            f"privacy: population {privacy.population}: the run has {num_clients} clients, expected at least as many"
        )
    expected = rule.expected_size(num_clients)
    noise, population, places = method.noise(expected), privacy.population, None
    if isinstance(rule.sampler, Poisson):
        sampling, places = "poisson", rule.cohort_size(num_clients)
        if _is_as_if(noise.cohort, expected, population, num_clients):  # the same rule for the other cohort
            limit = rule.sampler.limit and math.ceil(rule.sampler.limit * noise.cohort / expected)
            places = Poisson(limit).places(noise.cohort / population, population)
        places = None if places * rule.sampler.groups >= population else places
    else:
        sampling = "none" if noise.cohort == population else "without_replacement"
    neighbours = privacy.neighbours or ("replace" if sampling == "without_replacement" else "add_or_remove")
    return Mechanism(population, noise.cohort, rounds, sampling, places, _groups(rule), neighbours)


def accountant_of(privacy: Privacy, found: Mechanism) -> str:
    """Returns the accountant that is used for the mechanism."""
    return privacy.accountant or ("rdp" if found.sampling == "without_replacement" else "pld")


def noise_needed(
    privacy: Privacy, epsilon: float, algorithm: FedAvg, rule: Participation, rounds: int, num_clients: int
) -> float:
    """Returns the noise multiplier with which all rounds spend ``epsilon``; ``accounting.noise_multiplier``."""
    found = mechanism(privacy, algorithm, rule, rounds, num_clients)
    return accounting.noise_multiplier(found, epsilon, privacy.delta, accountant_of(privacy, found))


def statement(
    privacy: Privacy | None, algorithm: FedAvg, rule: Participation, rounds: int, num_clients: int
) -> tuple[dict[str, float], dict[str, Any]]:
    """Returns the epsilon of ``rounds`` rounds by the name of its metric, and the content of ``privacy.json``.

    Both are empty for a run in which no method perturbs the mean upload, the former also without ``privacy``.
    """
    if privacy is None and not algorithm.having("perturb"):
        return {}, {}
    says: dict[str, Any] = {"not_covered": NOT_COVERED}
    if algorithm.is_personal:
        own = {"accuracy": "of the clients' own models", "final.npz": "its parts that are means of the clients' own"}
        says["not_covered"] = {**NOT_COVERED, **own}
    if privacy is None:
        return {}, {"guarantee": "not accounted for: the run has no privacy=dict(delta=..., population=...)", **says}
    found, expected = mechanism(privacy, algorithm, rule, rounds, num_clients), rule.expected_size(num_clients)
    accountant, noise = accountant_of(privacy, found), _method(algorithm).noise(expected)
    epsilon = accounting.epsilon(found, noise.multiplier, privacy.delta, accountant)
    name, as_if = f"{EPSILON}{privacy.delta:g}", ""
    if _is_as_if(noise.cohort, expected, privacy.population, num_clients):
        name = f"{AS_IF}{privacy.delta:g}, {noise.cohort:g} of {privacy.population}"
        as_if = (
            f"as if {noise.cohort:g} of {privacy.population} clients took part in a round, not the {expected:g} of "
            f"{num_clients} of this run, which is less private: "
        )
    differ = {"replace": "one client replaced by another", "add_or_remove": "one client added or removed"}
    guarantee = (
        f"{as_if}({rounded_up(epsilon):.4g}, {privacy.delta:g})-differential privacy for federations with "
        f"{differ[found.neighbours]}, of the server's models of all {rounds} rounds of this run and of what is "
        "computed from them; what several runs with the same clients spend adds up"
    )
    accounted = dataclasses.asdict(found) | {"noise_multiplier": noise.multiplier, "accountant": accountant}
    spent = {"epsilon": epsilon, "delta": privacy.delta, "as_if": bool(as_if)}
    return {name: epsilon}, {"guarantee": guarantee, **spent, "mechanism": accounted, **says}


def rounded_up(epsilon: float) -> float:
    """Returns epsilon with the four digits that are shown of it, no smaller than it is."""
    if not 0 < epsilon < math.inf:
        return epsilon
    step = 10.0 ** (math.floor(math.log10(epsilon)) - 3)
    return float(f"{math.ceil(epsilon / step) * step:.4g}")


def _groups(rule):
    """Returns the number of groups of clients that take part in turn."""
    return rule.sampler.groups if isinstance(rule.sampler, Poisson) else 1


def _method(algorithm):
    """Returns the method that perturbs the mean upload."""
    for method in algorithm.having("perturb").values():
        return method
    raise UserError("privacy: no method adds noise to the mean upload; expected one such as methods.dp_fedavg")


def _is_as_if(cohort, expected, population, num_clients):
    return cohort != expected or population > num_clients
