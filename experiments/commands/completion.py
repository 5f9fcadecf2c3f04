"""Prints a script with which a shell completes programs, options, config keys and names.

    eval "$(fedjax-collapse completion bash)"     in ~/.bashrc, or saved to a file that it reads
    fedjax-collapse completion zsh                saved as _fedjax-collapse in a folder of $fpath
    fedjax-collapse completion tcsh               saved to a file that ~/.tcshrc reads

The script is of the installed version; what a config of the user adds is not in it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import shtab

from experiments.parser import Parser
from fedjax_collapse.command import PROGRAMS, import_program

SHELLS = ("bash", "zsh", "tcsh")
_FOLDERS = ("FOLDER", "RUN_FOLDER")  # in the place of a value

# In bash ``--option=value`` is three words, which shtab's function expects to be two; a config key needs the sign.
_BASH = """
_fedjax_collapse() {
  local given=("${COMP_WORDS[@]}") at=$COMP_CWORD COMP_WORDS=() COMP_CWORD=0 i
  for i in "${!given[@]}"; do
    if [[ ${given[i]} != "=" ]]; then
      COMP_WORDS+=("${given[i]}")
    elif (( i == at )); then
      COMP_WORDS+=("")
    fi
    (( i == at )) && COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
  done
  _shtab_fedjax_collapse
  if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == --config* ]]; then
    COMPREPLY[0]+="="
    compopt -o nospace 2> /dev/null
  fi
}
complete -o bashdefault -o default -F _fedjax_collapse fedjax-collapse
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the script and returns the exit status."""
    shell = command_line().parse_args(arguments).shell
    print(shtab.complete(whole(), shell) + _BASH * (shell == "bash"))
    return 0


def command_line() -> Parser:
    """Returns the parser of the command line."""
    parser = Parser(__doc__)
    parser.add_argument("shell", choices=SHELLS, help="the shell")
    return parser


def whole() -> argparse.ArgumentParser:
    """Returns one parser of all programs, which has the parser that each of them offers as ``command_line()``."""
    parser = argparse.ArgumentParser("fedjax-collapse")
    programs = parser.add_subparsers(metavar="PROGRAM")
    for name, (module, description) in PROGRAMS.items():
        own = import_program(module).command_line()
        for action in own._actions:
            if action.metavar in _FOLDERS:
                action.complete = shtab.DIRECTORY
            elif action.metavar == "FILE" or action.type is Path:
                action.complete = shtab.FILE
        programs.add_parser(name, parents=[own], add_help=False, help=description)
    return parser
