"""Command lines: the shell's completion of all programs, their ``--help``, and choices that stay open."""

import inspect
import re
import shutil
import subprocess
import sys

import pytest
from conftest import cases
from unrendered import ROOT

from experiments.commands import completion
from fedjax_collapse import UserError, command
from fedjax_collapse.command import MOVED, PROGRAMS, import_program

TRY = """
complete -p fedjax-collapse
while read -ra COMP_WORDS; do
  COMP_WORDS=("${COMP_WORDS[@]//NOTHING/}")
  COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
  _fedjax_collapse
  echo "${COMPREPLY[@]}"
done
"""
COMPLETED = {  # words, as bash divides them: what completes the last one
    "fedjax-collapse la": ["launch"],
    "fedjax-collapse list m": ["methods", "measurements"],
    "fedjax-collapse launch --config = quick": ["quickstart"],
    "fedjax-collapse launch --config = quickstart --config.netw": [
        f"--config.network.{key}" for key in ("name", "weights", "adapters", "task")
    ],
    "fedjax-collapse launch --config = quickstart --config.network.name = resnet2": ["resnet20"],
    "fedjax-collapse launch --resume = NOTHING": ["auto", "must", "never"],
    "fedjax-collapse partition --config = quickstart --ou": ["--out"],
    "fedjax-collapse convert digits store --partition.cl": ["--partition.classes_per_client"],
    "fedjax-collapse benchmark --systems pytorch-t": ["pytorch-threads"],
    "fedjax-collapse compile-for --methods = feddec": ["feddecorr"],
    "fedjax-collapse report --format = t": ["tex"],
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="it needs bash")
def test_bash_completes_programs_options_and_names(said, tmp_path):
    script = tmp_path / "completion.bash"
    script.write_text(said(completion, "bash") + TRY)
    words = "\n".join(COMPLETED) + "\n"
    done = subprocess.run(["bash", "--norc", script], input=words, capture_output=True, text=True)
    registered, *found = done.stdout.splitlines()
    assert not done.stderr and registered.endswith("-F _fedjax_collapse fedjax-collapse")
    assert dict(zip(COMPLETED, map(str.split, found), strict=True)) == COMPLETED


@cases("zsh", "tcsh")
def test_other_shells(shell, said):
    script = said(completion, shell)
    assert "fedjax-collapse" in script and "quickstart" in script and "compile-for" in script


@pytest.mark.parametrize("name", sorted(MOVED.keys() - PROGRAMS))
def test_a_former_program_names_its_pages(name, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fedjax-collapse", name, "--out=x"])
    assert command.main() == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: the program {name} is gone: ") and printed.count("\n") == 1
    assert all((ROOT / page).is_file() for page in re.findall(r"\w+/[\w/]+\.\w+", printed))


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_has_the_whole_description_and_an_error_is_one_line(name, capsys):
    program = import_program(PROGRAMS[name][0])
    text = program.command_line().format_help()
    paragraphs = inspect.getdoc(program).split("\n\n")
    assert all(paragraph.split("\n")[-1].strip() in text for paragraph in paragraphs)
    with pytest.raises((SystemExit, UserError)) as ended:
        program.command_line().parse_args(["--nothing-like-this"])
    printed = capsys.readouterr().err or f"error: {ended.value}\n"
    assert printed.startswith("error: ") and printed.count("\n") == 1


@cases("partition", "communication", "extract")
def test_help_of_programs_with_the_launchers_options(name, capsys):
    with pytest.raises(SystemExit) as ended:
        import_program(PROGRAMS[name][0]).main(["--help"])
    printed = capsys.readouterr().out
    assert ended.value.code == 0 and "--config.network.name" in printed and "--workers" not in printed
