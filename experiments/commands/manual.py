"""The reference of configs: every key, and the options of everything that a config chooses by name, read from the code.

``launch.py --help`` prints it, and ``docs/configs.md`` is made from it: fedjax-collapse manual > docs/configs.md

With ``--methods`` it prints the page ``docs/methods.md`` of a clone with its lists of options computed again. As the
page is also read: fedjax-collapse manual --methods > methods.md && mv methods.md docs/methods.md
"""

import inspect
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from experiments.config_files import config_files, relative
from experiments.parser import Parser, reports_errors
from fedjax_collapse import engine
from fedjax_collapse.config import keys as config_keys
from fedjax_collapse.config.build import SCHEDULES
from fedjax_collapse.config.keys import keys
from fedjax_collapse.core.records import UserError
from fedjax_collapse.data import OwnSplit, augment
from fedjax_collapse.engine.samplers import SAMPLERS
from fedjax_collapse.nn.adapters import LoRA
from fedjax_collapse.nn.network import HEADS
from fedjax_collapse.optim.local_training import LocalTraining
from fedjax_collapse.run.own_tests import Finetuning
from fedjax_collapse.run.privacy.guarantee import Privacy
from fedjax_collapse.schema import discovery
from fedjax_collapse.schema.names import check_name
from fedjax_collapse.schema.values import Option, options

_GIVEN = {"labels", "num_clients", "domains", "owners", "num_classes", "parent", "name", "target"}
_GIVEN |= {"coarse_labels", "view", "round", "rounds"}
_GIVEN_OF = {
    "methods": set(),
    "data.source": _GIVEN - {"num_classes", "domains"},
    "own_tests.name": _GIVEN | {"seed"},
    "training.optimizer.name": _GIVEN | {"learning_rate"},
}
_OF_OPTAX = "**`{0}`**: `optax.{0}`; options: `launch.py --help={0}`."
_CHOICES = {  # kind: the config's key, and what it chooses, by name
    "data sources": ("data.source", config_keys.SOURCES),
    "partitions": ("partition.name", config_keys.PARTITIONS),
    "own tests": ("own_tests.name", {"split": OwnSplit}),
    "fine-tuning": ("finetuning", {"finetuning": Finetuning}),
    "networks": ("network.name", config_keys.NETWORKS),
    "heads": ("network.head", HEADS),
    "adapters": ("network.adapters", {"adapters": LoRA}),
    "methods": ("methods", config_keys.METHODS),
    "measurements": ("measurements", config_keys.MEASUREMENTS),
    "server optimizers": ("server.optimizer.name", config_keys.SERVER_OPTIMIZERS),
    "settings of local training": ("training", {"training": LocalTraining}),
    "optimizers of local training": ("training.optimizer.name", config_keys.OPTIMIZERS),
    "learning-rate schedules": ("training.schedule.name", SCHEDULES),
    "privacy": ("privacy", {"privacy": Privacy}),
    "samplers": ("cohort.sampler.name", SAMPLERS),
    "virtual time": ("cohort.clock", {"clock": engine.Clock}),
}
_METHODS_PAGE = Path(__file__).resolve().parents[2] / "docs/methods.md"


class Choice(NamedTuple):
    """Something that a config chooses by its name."""

    section: str  # the config's key
    name: str
    summary: str  # the first line of its docstring
    options: list[Option]
    made: Any  # the class or function


def choices() -> dict[str, list[Choice]]:
    """Returns everything with a name, by kind."""
    return {
        kind: [_choice(section, name, made) for name, made in sorted(by_name.items())]
        for kind, (section, by_name) in _CHOICES.items()
    }


def _choice(section, name, made):
    is_of_file = inspect.isclass(made) and discovery.has_own_file(made)
    summary = (inspect.getdoc(inspect.getmodule(made) if is_of_file else made) or "").split("\n\n")[0]
    found = options(made, _GIVEN_OF.get(section, _GIVEN))
    return Choice(section, name, " ".join(summary.split()), found, made)


def on_screen(topic: str, values: flags.FlagValues) -> str:
    """Returns the output of ``--help`` after the launcher's docstring; with a topic, the options of that name.

    Raises:
        UserError: nothing has that name.
    """
    if topic:
        found = [choice for group in choices().values() for choice in group]
        check_name("topic of --help", topic, {choice.name for choice in found})
        return "\n\n".join(_topic(choice) for choice in found if choice.name == topic)
    configs = [_filled(f"  {relative(path):44} {first_line(path)}", 47) for path in config_files()]
    options = [f"  --{name:22} {' '.join((values[name].help or '').split())}" for name in values]
    lines = [_row(f"  {f'--config.{key.name}={key.default}':52} {key.allowed}", 55, key.meaning) for key in _keys()]
    listed = [_filled(f"  {what}: {', '.join(item.name for item in group)}", 6) for what, group in choices().items()]
    parts = {
        "Options": options,
        "Configs": configs,
        "Keys, with their defaults": lines,
        "Names (--help=NAME prints the options of one)": listed,
    }
    return "\n\n".join("\n".join([title, *content]) for title, content in parts.items())


def _filled(text, indent=0):
    return textwrap.fill(text, 120, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def first_line(path: Path) -> str:
    """Returns the first line of a config's docstring."""
    return path.read_text(encoding="utf-8").removeprefix('"""').split("\n")[0]


def _topic(choice):
    rows = [
        _row(f"  {option.name:22} {option.default:22} {option.allowed}", 48, option.meaning)
        for option in choice.options
    ]
    title = f"{choice.section}: {choice.name}"
    return "\n".join([title, _filled(choice.summary), "", *(rows or ["  it takes no options"])])


def _row(text, indent, meaning):
    return _filled(text, indent) + "\n" + _filled(" " * 6 + meaning, 6)


def as_markdown() -> str:
    """Returns the page ``docs/configs.md``."""
    groups = choices()
    del groups["methods"], groups["measurements"]
    links = {group[0].section: f"[{what}](#{what.replace(' ', '-')})" for what, group in groups.items()}
    links |= {
        "training.augmentation": "[augmentations](#augmentations)",
        "methods": "[methods](methods.md)",
        "measurements": "[measurements](analysis.md#definitions)",
    }
    parts = [
        "# Configs: every key, and what it may be",
        "`fedjax-collapse manual > docs/configs.md` computes this page; `launch.py --help` and `--help=NAME` print it\n"
        "in parts. A config file changes values of `fedjax_collapse/config/base.py`. The command line changes them,\n"
        'too: `--config.partition.alpha=0.05`, `--config.seeds="(0,1)"`, `--config.methods=fedprox,moon` or\n'
        '`"dict(fedprox=dict(strength=0.1))"`. Options of a name are keys next to it:\n'
        "`partition=dict(name='dirichlet', alpha=0.1)`. A name may be `\"module:Name\"`, of your code. A default\n"
        "follows `=`; without one, an option is required. In brackets are the type, the values, or a link to them.",
        "## Keys",
        "\n".join(_item(key, links.get(key.name)) for key in _keys()),
        "### Augmentations",
        "Values of `training.augmentation`, and what they do to an image in raw pixel units:",
        "\n".join(f"* `{name}`: {augment.in_words(preset)}" for name, preset in augment.PRESETS.items()),
    ]
    for what, group in groups.items():
        parts += [f"## {what.capitalize()}", f"Key: `{group[0].section}`."]
        ours = [choice for choice in group if not choice.made.__module__.startswith("optax")]
        of_all = set.intersection(*(set(choice.options) for choice in group))
        used = Counter(o if o in of_all else o._replace(default="") for choice in ours for o in choice.options)
        shared = sorted({o.name: o for o, count in reversed(used.most_common()) if count > 1}.values())
        if shared:
            parts += ["Options of several names, with a default if of all:", "\n".join(map(_item, shared))]
        for choice in group:
            if choice not in ours:  # whose words may be others in its next version
                parts.append(_OF_OPTAX.format(choice.name))
                continue
            also = [o for o in choice.options if o._replace(default="") in shared]
            items = [
                _item(o)
                for o in choice.options
                if o not in also + shared and f"{choice.section}.{o.name}" not in keys()
            ]
            if also:
                items.append(_filled(f"* as above: {', '.join(map(_assigned, also))}", 2))
            parts.append("\n".join([_filled(f"**`{choice.name}`**: {choice.summary}"), "", *items]).rstrip())
    return "\n\n".join(parts) + "\n"


def _keys():
    return [key.option() for key in keys().values()]


def _item(option, link=None):
    """Returns an item of a list. A ``link`` replaces the values."""
    values = link or f"`{option.allowed}`".replace(" | ", "`, `")
    return _filled(f"* {_assigned(option)} ({values}): {option.meaning}".replace(" (``)", ""), 2)


def _assigned(option):
    return f"`{option.name}={option.default}`".replace("=`", "`")


def with_options(page: str) -> str:
    """Returns the text of a page with the options of a method below each line ``<!-- options of NAME -->``.

    They replace the lines from there to the next empty line.

    Raises:
        UserError: a method of that name does not exist.
    """

    def computed(found):
        marker, name = found.groups()
        check_name("method in a list of options", name, config_keys.METHODS)
        return "\n".join([marker, *map(_item, options(config_keys.METHODS[name])), ""])

    return re.sub(r"^(<!-- options of (\w+) -->)\n(?:.+\n)*", computed, page, flags=re.MULTILINE)


def command_line() -> Parser:
    """Returns the parser of the command line."""
    parser = Parser(__doc__)
    parser.add_argument("--methods", action="store_true", help="print docs/methods.md with computed options")
    return parser


@reports_errors
def main(arguments: Sequence[str] = ()) -> int:
    """Prints the page of the docs and returns the exit status: 2 if there is no page of methods."""
    if is_of_methods := command_line().parse_args(arguments).methods:
        page = _METHODS_PAGE.read_text(encoding="utf-8") if _METHODS_PAGE.is_file() else ""
        if not page:
            raise UserError(f"{_METHODS_PAGE}: no such page, or empty: expected that of a clone of the project")
    page = with_options(page) if is_of_methods else as_markdown()
    sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(page)
    return 0
