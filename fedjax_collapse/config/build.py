"""Builds the algorithm, network, schedule and layout of a config."""

import inspect
import json
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax

from fedjax_collapse import engine, methods
from fedjax_collapse.config.federations import data_source as data_source
from fedjax_collapse.config.federations import federations as federations
from fedjax_collapse.config.keys import (
    HEAD_INITS,
    MEASUREMENTS,
    METHODS,
    NETWORKS,
    OPTIMIZERS,
    SERVER_OPTIMIZERS,
    entries,
)
from fedjax_collapse.core import processes
from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.target import Target
from fedjax_collapse.data import Federation, augment
from fedjax_collapse.engine import Participation
from fedjax_collapse.engine.samplers import SAMPLERS
from fedjax_collapse.methods.base import Method
from fedjax_collapse.nn import task
from fedjax_collapse.nn.adapters import LoRA
from fedjax_collapse.nn.interchange.pretrained import load_pretrained
from fedjax_collapse.nn.model import Model
from fedjax_collapse.nn.network import HEADS, Network
from fedjax_collapse.optim import schedules
from fedjax_collapse.optim.local_training import LocalTraining, Phase
from fedjax_collapse.optim.optimizers import check_optimizer
from fedjax_collapse.run.own_tests import Finetuning
from fedjax_collapse.run.privacy import guarantee
from fedjax_collapse.run.privacy.guarantee import Privacy
from fedjax_collapse.run.privacy.keys import is_rejected
from fedjax_collapse.run.runs import Schedule
from fedjax_collapse.schema import discovery
from fedjax_collapse.schema.names import check_name, choose, chosen_name, found, functions, without
from fedjax_collapse.schema.options import Decay, NonNegative, Positive, check_value, constructor, with_options
from fedjax_collapse.schema.user_code import explaining
from fedjax_collapse.schema.values import as_tuple, check_arguments, from_values
from fedjax_collapse.training.algorithm import FedAvg

SCHEDULES = functions(schedules)
_OF_OPTAX = {  # annotations that optax does not have
    "learning_rate": Positive,
    "momentum": Decay | None,
    **dict.fromkeys(("b1", "b2", "decay"), Decay),
    **dict.fromkeys(("eps", "eps_root", "weight_decay", "initial_accumulator_value"), NonNegative),
}
ALIASES = {  # published methods that are values of other keys
    "fedavg": {},
    "fedbn": dict(server=dict(batch_norm="local")),
    "fedavgm": dict(server=dict(optimizer=dict(name="sgd", learning_rate=1.0, momentum=0.9))),
    **{
        f"fed{name}": dict(server=dict(optimizer=dict(name=f"damped_{name}", learning_rate=0.1)))
        for name in ("adagrad", "adam", "yogi")
    },
    "freeze": dict(training=dict(freeze="head")),
}


def algorithm(config: Mapping[str, Any]) -> FedAvg:
    """Returns the algorithm: local training, methods in the order of the config, and the server's step.

    With ``privacy.epsilon``, the method that adds noise gets the noise multiplier that this epsilon needs.

    Raises:
        UserError: the config is invalid, or no noise is enough.
    """
    made = _algorithm(config)
    if "epsilon" not in config["privacy"]:
        return made
    planned = schedule(config)
    planned.privacy.check()
    for name, method in made.having("perturb").items():
        if "noise_multiplier" in config["methods"][name]:
            raise UserError(
                f"privacy.epsilon and methods.{name}.noise_multiplier: each follows from the other, give one"
            )
        check_value("privacy.epsilon", epsilon := config["privacy"]["epsilon"], Positive)
        quiet = made.replace(methods={**made.methods, name: method.replace(noise_multiplier=0.0)})
        needed = guarantee.noise_needed(
            planned.privacy, epsilon, quiet, planned.rule, config["rounds"], config["clients"]
        )
        return made.replace(methods={**made.methods, name: method.replace(noise_multiplier=needed)})
    raise UserError("privacy.epsilon: no method adds noise to the mean upload; expected methods.dp_fedavg")


def _algorithm(config):
    methods = {key: _method(f"methods.{key}", key, options) for key, options in config["methods"].items()}
    settings, private = dict(config["server"]), config["private"]
    batch_norm, chosen = settings.pop("batch_norm", "average"), settings.pop("optimizer", {"name": "none"})
    if batch_norm == "recalibrate":
        methods.setdefault("recalibrate", METHODS["recalibrate"]())
    if batch_norm == "local":
        private = "batch_norm" if private == "none" else f"{private}+batch_norm"
    if chosen_name("server.optimizer", chosen) != "none":
        settings["server_optimizer"] = _optimizer("server.optimizer", chosen, SERVER_OPTIMIZERS)
    elif unused := without(chosen, "name"):
        raise UserError(
            f"server.optimizer.{next(iter(unused))}: set server.optimizer.name, too, such as sgd; it is none"
        )
    given = dict(private=private, keep_trained=config["keep_trained"])
    return from_values("server", FedAvg, settings, training=_training(config), methods=methods, **given)


def _method(path, key, options):
    """Returns the method with that file's name, or with its ``name`` option."""
    check_value(path, options, dict)
    name = options.get("name", key)
    if isinstance(name, str) and name in ALIASES:
        values = _in_python(ALIASES[name]) or "methods=dict(), without any"
        raise UserError(f"{path}: {name} is federated averaging with {values}")
    is_new = isinstance(name, str) and name not in METHODS  # perhaps a file that is new since the import
    known = discovery.classes(methods, Method) if is_new else METHODS
    return from_values(path, found("method", name, known, Method), without(options, "name"))


def _in_python(values):
    """Returns the keywords of ``dict(...)`` with these values, numbers and text, as a config file has them."""
    texts = (f"dict({_in_python(of)})" if isinstance(of, dict) else json.dumps(of) for of in values.values())
    return ", ".join(f"{key}={text}" for key, text in zip(values, texts, strict=True))


def _training(config):
    """Returns a client's local training."""
    options = without(config["training"], "augmentation", "optimizer", "phases", "schedule")
    if config["network"].get("adapters"):
        check_value("training.freeze", frozen := options.get("freeze", "none"), str)
        options["freeze"] = "+".join(part for part in ("base", frozen) if part != "none")
    given = dict(augmentation=augmentation(config["training"].get("augmentation", "none")))
    if options.get("task_loss") is not None:
        options["task_loss"] = found("training.task_loss", options["task_loss"], {})
    if (chosen := config["training"].get("optimizer")) is not None:
        given["optimizer"] = _optimizer("training.optimizer", chosen, OPTIMIZERS)
    given["schedule"] = _learning_rate_schedule(config["training"].get("schedule", "constant"), config["rounds"])
    check_value("training.phases", phases := config["training"].get("phases", ()), tuple)
    given["phases"] = tuple(map(_phase, phases))
    return from_values("training", LocalTraining, options, **given)


def _learning_rate_schedule(value, rounds):
    """Returns the schedule of that name, or of a dict with its name and options; None if it is constant."""
    if value in ("constant", {"name": "constant"}):
        return None
    _, function, options = choose("training.schedule", value, SCHEDULES, is_text=True)
    if "rounds" in inspect.signature(function).parameters:
        options = {"rounds": rounds} | options
    check_arguments("training.schedule", function, options, {"round": 0})
    return constructor(function, **options)


def _phase(value):
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise UserError(f"training.phases: {value!r}, expected pairs of a part and its epochs, such as ('head', 10)")
    return from_values("training.phases", Phase, dict(zip(("part", "epochs"), value, strict=True)))


def augmentation(name: str) -> augment.Augmentation | None:
    """Returns the preset of ``data/augment``, or a custom function; None if it does not change images."""
    made = found("training.augmentation" if ":" in str(name) else "augmentation", name, augment.PRESETS)
    return None if made is augment.PRESETS["none"] else made


def _optimizer(what, config, known):
    """Returns the constructor of an optimizer with its arguments, whose numbers stay traced. A step is traced to check
    it.

    Raises:
        UserError: there is no such optimizer, or its arguments are invalid.
    """
    name, made_by, arguments = choose(what, config, known)
    given = {} if what == "server.optimizer" else {"learning_rate": 0.1}  # local training passes it in every round
    check_arguments(what, made_by, arguments, given)
    for key, value in arguments.items() if made_by in OPTIMIZERS.values() else ():
        default = inspect.signature(made_by).parameters[key].default
        kind = type(default) if isinstance(default, (bool, float)) else Any
        check_value(f"{what}.{key}", value, _OF_OPTAX.get(key, kind))
    made = constructor(made_by, **arguments)
    check_value(what, made, jax.tree_util.Partial)
    with explaining(f"{what} {name}"):
        check_optimizer(f"{what} {name}", made, **given)
    return made


def model(config: Mapping[str, Any], federation: Federation) -> Model:
    """Returns the network, with as many classes as the data, for images of the size after augmentation."""
    name, options = chosen_name("network", config["network"]), without(config["network"], "name")
    if options.get("lowering") in ("timed", "rules"):  # timed in ``runs.make_plan``, by the rules until then
        options["lowering"] = "auto"
    check_name("head", config["head"], HEAD_INITS)
    weights, adapters = options.pop("weights", ""), options.pop("adapters", None)
    if chosen := options.pop("task", ""):
        options.setdefault("head", "siamese")
    augmented = _augmented_shape(config, federation)
    predicted = task.named(chosen or federation.task, federation.num_classes)
    predicted.check_classes(federation.num_classes)
    module = network(name, options, federation.num_classes)
    with explaining(f"network {name} cannot be made with these options"):
        adapters = from_values("network.adapters", LoRA, adapters) if adapters else None
        built = Model(module, augmented, HEAD_INITS[config["head"]], predicted, federation.input_dtype, adapters)
        if weights:
            built = load_pretrained(built, weights)
        jax.eval_shape(built.init, jax.random.key(0))  # raises for invalid options or image sizes
    return built


def network(name: str, options: Mapping[str, Any], num_classes: int) -> nn.Module:
    """Returns the network of that name with its options, among them ``head``: a name, or a name with options.

    Raises:
        UserError: there is no such network, or one of its options, or its head, is invalid.
    """
    kind = found("network", name, NETWORKS, nn.Module)
    if "head" in options and issubclass(kind, Network):
        options = {**options, "head": _head(options["head"])}
    return from_values("network", kind, options, num_classes=num_classes)


def _head(value):
    _, kind, options = choose("network.head", value, HEADS, nn.Module, is_text=True)
    num_classes, *_ = inspect.signature(kind).parameters
    check_arguments("network.head", kind, options, {num_classes: None})
    return with_options(kind, **{name: as_tuple(option) for name, option in options.items()}) if options else kind


def _augmented_shape(config, federation):
    """Returns the shape of an image as the network sees it."""
    name = config["training"].get("augmentation", "none")
    with explaining(f"augmentation {name}"):
        return augment.output_shape(augmentation(name), federation.input_shape)


def schedule(config: Mapping[str, Any]) -> Schedule:
    """Returns the schedule: the number of rounds, the participation of clients, and the measurements."""
    options = without(config["cohort"], "sampler")
    given = dict(fraction=config["participation"])
    if (sampler := config["cohort"].get("sampler")) is not None:
        _, kind, of_sampler = choose("cohort.sampler", sampler, SAMPLERS, engine.Uniform)
        given["sampler"] = from_values("cohort.sampler", kind, of_sampler)
    rule = from_values("cohort", Participation, options, **given)
    left_out = {name: None for name in ("dropout", "stragglers", "upload_loss") if not getattr(rule, name)}
    rule = rule.replace(**left_out)  # 0 would be in the program
    measured = tuple(
        (name, found(f"measurements.{name}", function, MEASUREMENTS))
        for name, function in config["measurements"].items()
        if function is not None
    )
    of_records = {"finetuning": Finetuning, "privacy": Privacy}
    given = {key: config[key] for key in Schedule._fields if key not in ("participation", "measurements", *of_records)}
    for key, record in of_records.items():
        given[key] = from_values(key, record, without(config[key], "epsilon")) if config[key] else None
    given["watch"] = _watch(config["watch"])
    return Schedule(participation=rule, measurements=measured, **given)


def check_privacy(config: Mapping[str, Any]) -> None:
    """Raises UserError if the privacy of a cell does not hold or cannot be accounted for, without tracing a program or
    searching the noise.

    A key that privacy rejects (``privacy/keys.py``) must have its default.
    """
    made = _algorithm(config)
    if not (config["privacy"] or made.having("perturb")):
        return
    for key, value in entries(config):
        if is_rejected(key.path) and value != key.default:
            expected = f"expected its default, {key.default!r}"
            raise UserError(f"config.{key.path} {value!r}: not known to be private, {expected}")
    if "epsilon" in config["privacy"]:  # the noise that it needs comes later, here any
        some = {name: method.replace(noise_multiplier=1e-9) for name, method in made.having("perturb").items()}
        made = made.replace(methods={**made.methods, **some})
    planned, is_own = schedule(config).resolved(made), made.is_personal or config["own_tests"]["name"] != "shares"
    guarantee.check(
        planned.privacy, made.enabled(), planned.rule, planned.rounds, config["clients"],
        on_nan=planned.on_nan, is_compiled=config["engine"]["layout"] != "loop",
        stops_at_own=planned.stop_at_accuracy > 0 and is_own,
        has_validation=config["data"].get("validation_fraction", 0.0) > 0,
    )  # fmt: skip


def _watch(text):
    """Returns ``one``, ``all``, or the identities in a text such as 0,3."""
    identities = [part.strip() for part in text.split(",")]
    return tuple(map(int, identities)) if all(part.isdecimal() for part in identities) else text


def client_map(config: Mapping[str, Any], network: Model) -> engine.ClientMap:
    """Returns the layout of clients. ``auto`` uses all devices, and chooses the number of clients at once on each."""
    options = config["engine"]
    cohort = schedule(config).rule.cohort_size(config["clients"])
    _check_layout(options, cohort)
    devices = engine.available_devices()
    num_devices = options["devices"] or engine.num_busy(cohort, devices)
    most = engine.clients_at_once(Target.of(devices[0]), network)
    chunk = engine.Chunked(options["clients_at_once"] or min(most, -(-cohort // num_devices)))
    layout = options["layout"]
    if processes.is_multiprocess() and layout not in ("auto", "timed", "sharded"):
        raise UserError(f"engine.layout {layout!r}: several processes divide the clients; choose auto or sharded")
    if layout in ("auto", "timed"):
        layout = "sharded" if num_devices != 1 else "chunked"
    if layout == "sharded":
        return engine.Sharded(num_devices, chunk)
    return {"chunked": chunk, "vectorized": engine.Vectorized(), "loop": engine.Loop()}[layout]


def _check_layout(options, cohort):
    at_once, layout = options["clients_at_once"], options["layout"]
    if at_once and layout in ("vectorized", "loop"):
        raise UserError(f"engine.clients_at_once {at_once}: expected 0, because layout {layout} has none")
    if at_once > cohort:
        raise UserError(f"engine.clients_at_once {at_once}: expected at most {cohort}, the clients of a round")
    if options["devices"] > 1 and layout in ("vectorized", "loop", "chunked"):
        raise UserError(f"engine.devices {options['devices']}: expected 0 or 1, because layout {layout} uses one")
