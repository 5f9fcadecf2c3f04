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
from fedjax_collapse.run.privacy.keys import ACCEPTED, COUNTED, HARMLESS
from fedjax_collapse.schema import discovery
from fedjax_collapse.schema.names import check_name
from fedjax_collapse.schema.values import Option, options

_GIVEN = {"labels", "num_clients", "domains", "owners", "num_classes", "parent", "name", "target", "fraction", "kwargs"}
_GIVEN |= {"coarse_labels", "view", "round", "rounds", "sampler", "clock"}
_GIVEN_OF = {
    "methods": set(),
    "data.source": _GIVEN - {"num_classes", "domains"},
    "own_tests.name": _GIVEN | {"seed"},
    "training.optimizer.name": _GIVEN | {"learning_rate"},
}
_OF_OPTAX = (
    "`optax.{0}`, which its documentation describes; `launch.py --help={0}` prints its options and their defaults."
)
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
    "cohorts": ("cohort", {"cohort": engine.Participation}),
    "privacy": ("privacy", {"privacy": Privacy}),
    "samplers": ("cohort.sampler.name", SAMPLERS),
    "virtual time": ("cohort.clock", {"clock": engine.Clock}),
}
_METHODS_PAGE = Path(__file__).resolve().parents[2] / "docs/methods.md"
_SEVERAL = 3  # choices with the same option, which the page then describes once
_WIDTH = 100
_PAGE_WIDTH = 120


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
        check_name("topic of --help", topic, {choice.name: choice for choice in found})
        return "\n\n".join(_topic(choice) for choice in found if choice.name == topic)
    configs = [_filled(f"  {relative(path):44} {first_line(path)}", 47) for path in config_files()]
    options = [(f"  --{name}", " ".join((values[name].help or "").split())) for name in values]
    lines = [
        _filled(f"  {f'--config.{key.name}={key.default}':52} {key.allowed}", 55) + f"\n{_indented(key.meaning)}"
        for key in _keys()
    ]
    listed = [
        textwrap.fill(f"{what}: {', '.join(choice.name for choice in group)}", _WIDTH, subsequent_indent="    ")
        for what, group in choices().items()
        if len(group) > 1
    ]
    parts = {
        "Options": [f"{option:26} {text}" for option, text in options],
        "Configs": configs,
        "Keys, with their defaults": lines,
        "Names (--help=NAME has what each of them takes)": [textwrap.indent(text, "  ") for text in listed],
    }
    return "\n\n".join("\n".join([title, *content]) for title, content in parts.items())


def _filled(text, indent=2):
    options = dict(break_long_words=False, break_on_hyphens=False)
    return textwrap.fill(text, _PAGE_WIDTH, subsequent_indent=" " * indent, **options)


def first_line(path: Path) -> str:
    """Returns the first line of a config's docstring."""
    return path.read_text(encoding="utf-8").removeprefix('"""').split("\n")[0]


def _topic(choice):
    rows = [
        _filled(f"  {option.name:22} {option.default:22} {option.allowed}", 48) + f"\n{_indented(option.meaning)}"
        for option in choice.options
    ]
    title = f"{choice.section}: {choice.name}"
    return "\n".join([title, textwrap.fill(choice.summary, _WIDTH), "", *(rows or ["  it takes no options"])])


def _indented(text):
    return textwrap.fill(text, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)


def as_markdown() -> str:
    """Returns the page ``docs/configs.md``."""
    groups = choices()
    headings = {group[0].section: what for what, group in groups.items()}
    parts = [
        "# Configs: every key, and what it may be",
        "Made from the code by `fedjax-collapse manual > docs/configs.md`; `launch.py --help` prints the same, and\n"
        "`--help=NAME` the options of a name. A config file starts from `fedjax_collapse/config/base.py` and changes\n"
        "values; any of them can also be changed on the command line, as in `--config.partition.alpha=0.05`, or\n"
        '`--config.seeds="(0,1)"` for a tuple and `--config.methods="dict(fedprox=dict(strength=0.1))"` for a dict.\n'
        "What chooses something by its name takes the options of that as further keys next to the name. In brackets\n"
        "are the values that a key may have, and its default.",
        "## Keys",
        "\n".join(_item(key, headings.get(key.name, "")) for key in _keys()),
        "### Augmentations",
        "Values of `training.augmentation`, and what they do to an image in raw pixel units:",
        "\n".join(f"* `{name}`: {augment.in_words(preset)}" for name, preset in augment.PRESETS.items()),
    ]
    for what, group in groups.items():
        parts.append(f"## {what[0].upper()}{what[1:]}")
        if group[0].section == "methods":
            links = ", ".join(f"[`{choice.name}`](methods.md#{choice.made.__name__.lower()})" for choice in group)
            parts.append(_filled(f"Their options are in [Methods](methods.md): {links}."))
            continue
        taken_by = Counter(option for choice in group for option in choice.options)
        several = [option for option, count in taken_by.items() if count >= _SEVERAL]
        parts += ["Options of several of them:", "\n".join(map(_item, several))] if several else []
        for choice in group:
            parts.append(f"### `{choice.name}` (`{choice.section}`)")
            if choice.made.__module__.startswith("optax"):  # its words may be others in its next version
                parts.append(_OF_OPTAX.format(choice.name))
                continue
            own = [_item(option) for option in choice.options if option not in several]
            also = ", ".join(f"`{option.name}`" for option in choice.options if option in several)
            own += [_filled(f"* {also}, as above")] if also else []
            parts += [choice.summary, "\n".join(own) or "It takes no options."]
    return "\n\n".join(parts) + "\n"


def privacy_of_keys() -> str:
    """Returns the lists of ``docs/privacy.md``: what each key means for a run with privacy."""
    rejected = [f"| `{path}` | {accepted} |" for path, accepted in ACCEPTED.items()]
    others = [
        f"{kind}: {', '.join(f'`{path}`' for path in paths)}."
        for kind, paths in (("counted", COUNTED), ("harmless", HARMLESS))
    ]
    return "\n".join(
        ["| rejected | but accepted |", "|---|---|", *rejected, "", "\n\n".join(_filled(text, 0) for text in others)]
    )


def _keys():
    return [key.option() for key in keys().values()]


def _item(option, heading=""):
    """Returns an item of a list, with a link to the heading below which the options of the key's values are."""
    allowed = f"`{option.allowed}`".replace(" | ", "` or `") + ", " if option.allowed else ""
    default = f"default `{option.default}`" if option.default else "required"
    link = f"; see [{heading}](#{heading.replace(' ', '-')})" if heading else ""
    return _filled(f"* `{option.name}` ({allowed}{default}): {option.meaning}{link}")


def with_options(page: str) -> str:
    """Returns the text of a page with the options of a method below each line ``<!-- options of NAME -->``.

    They replace the lines from there to the next empty line.

    Raises:
        UserError: a method of that name does not exist.
    """

    def computed(found):
        marker, name = found.groups()
        check_name("method in a list of options", name, config_keys.METHODS)
        items = [*map(_item, options(config_keys.METHODS[name]))]
        return "\n".join([marker, *(items or ["It has no options."]), ""])

    return re.sub(r"^(<!-- options of (\w+) -->)\n(?:.+\n)*", computed, page, flags=re.MULTILINE)


def _methods_page():
    page = _METHODS_PAGE.read_text(encoding="utf-8") if _METHODS_PAGE.is_file() else ""
    if not page:
        raise UserError(f"{_METHODS_PAGE}: no such page, or empty: expected that of a clone of the project")
    return with_options(page)


def command_line() -> Parser:
    """Returns the parser of the command line."""
    parser = Parser(__doc__)
    parser.add_argument("--methods", action="store_true", help="print docs/methods.md with computed options")
    return parser


@reports_errors
def main(arguments: Sequence[str] = ()) -> int:
    """Prints the page of the docs and returns the exit status: 2 if there is no page of methods."""
    page = _methods_page() if command_line().parse_args(arguments).methods else as_markdown()
    sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(page)
    return 0
