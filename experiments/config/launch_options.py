"""The launcher's options for ``--help`` and completion of all programs that have them; absl parses them."""

from collections.abc import Sequence

from absl import flags

from experiments.commands.parser import Parser
from experiments.config import choices
from experiments.config.config_files import CONFIGS, config_files
from experiments.config.manual import keys
from experiments.config.parsing import defined_flags

_INTERNAL = "share"  # set by the launcher itself


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
    names = choices.OpenChoice(configs, "a file")
    parser.add_argument("--config", choices=names, metavar="CONFIG", help="a file, or a config of the project")
    for name in values:
        if name != _INTERNAL and (name in only or not only):
            valid = values[name].parser.enum_values if isinstance(values[name], flags.EnumFlag) else None
            parser.add_argument(f"--{name}", choices=valid, help=_escaped(values[name].help))
    for key in keys():
        names = choices.quoted(key.allowed)
        parser.add_argument(f"--config.{key.name}", choices=names, metavar="VALUE", help=_escaped(key.allowed))
    return parser


def help_is_asked(arguments: Sequence[str]) -> bool:
    """Returns whether ``--help`` is among the arguments, which absl does not expect."""
    return not {"-h", "--help"}.isdisjoint(arguments)


def _escaped(text):
    return " ".join((text or "").split()).replace("%", "%%")
