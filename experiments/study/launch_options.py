"""The launcher's options for ``--help`` and completion of all programs that have them; absl parses them."""

from collections.abc import Sequence

from absl import flags

from experiments.config_files import CONFIGS, config_files
from experiments.parser import Parser
from experiments.study.parsing import defined_flags
from fedjax_collapse.config.keys import keys
from fedjax_collapse.schema.options import OpenChoice, in_words, listed

_INTERNAL = "worker"  # set by the launcher itself


def command_line(docstring: str | None, parents: Sequence[Parser] = (), only: Sequence[str] = ()) -> Parser:
    """Returns a parser with the launcher's flags and every key of a config.

    Args:
        docstring: the program's.
        parents: parsers of other options that the program has.
        only: flags that the program takes; by default all.
    """
    usage = "%(prog)s --config=CONFIG [--config.KEY=VALUE ...] [--OPTION=VALUE ...]"
    parser = Parser(docstring, parents=parents, usage=usage)
    values = defined_flags()
    configs = [path.relative_to(CONFIGS).with_suffix("").as_posix() for path in config_files()]
    names = OpenChoice(configs, "a file")
    parser.add_argument("--config", choices=names, metavar="CONFIG", help="a file, or a config of the project")
    for name in values:
        if name != _INTERNAL and (name in only or not only):
            valid = values[name].parser.enum_values if isinstance(values[name], flags.EnumFlag) else None
            parser.add_argument(f"--{name}", choices=valid, help=_escaped(values[name].help))
    for key in keys().values():
        allowed = in_words(key.kind)
        parser.add_argument(f"--config.{key.path}", choices=_names(key.kind), metavar="VALUE", help=_escaped(allowed))
    return parser


def help_is_asked(arguments: Sequence[str]) -> bool:
    """Returns whether ``--help`` is among the arguments, which absl does not expect."""
    return not {"-h", "--help"}.isdisjoint(arguments)


def _names(kind):
    """Returns the names that the annotation of a key lists; None if it lists none."""
    names = ("True", "False") if kind is bool else listed(kind)
    return names and OpenChoice(filter(None, names), "")


def _escaped(text):
    return " ".join((text or "").split()).replace("%", "%%")
