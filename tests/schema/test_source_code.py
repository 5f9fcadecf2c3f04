"""What of the user's own code a run depends on, by the hashes of its files."""

import sys
import textwrap

import pytest

from fedjax_collapse import FedAvg, FedDecorr, LocalTraining, Model, nn
from fedjax_collapse.schema.source_code import file_of, source_hashes

FILES = {
    "own_method.py": """
        from flax import struct
        from fedjax_collapse import Regularizer
        import own_helper

        class Own(Regularizer):
            strength: float = 1.0

            def penalty(self, view):
                from own_package.inner import later
                return {}

        def function(view):
            return 0.0
        """,
    "own_helper.py": "import numpy, os\n",
    "own_package/__init__.py": "",
    "own_package/inner.py": "from . import sibling\nfrom .. import beyond\n",
    "own_package/sibling.py": "import own_method\n",
    "unrelated.py": "",
}
OF_OWN = ["own_helper", "own_method", "own_package", "own_package.inner", "own_package.sibling"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Modules of the user's, on the path; none is left when the test is over."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in OF_OWN:
        sys.modules.pop(name, None)


def test_files_of_all_that_is_imported_at_any_depth(folder):
    """Also what is imported later; a change of any of them changes one hash, one of another file none.

    Nor does a change of comments, docstrings or layout.
    """
    import own_method

    algorithm = FedAvg(LocalTraining(task_loss=own_method.function), {"own": own_method.Own()})
    before = source_hashes(algorithm)
    assert list(before) == OF_OWN
    assert source_hashes([{"x": (own_method.function,)}]) == before == source_hashes(own_method.Own)
    for name in ("unrelated", *OF_OWN):
        path = folder / (f"{name.replace('.', '/')}" + ("/__init__.py" if name == "own_package" else ".py"))
        text = path.read_text()
        documented = text.replace("    return 0.0", "    'Changed.'\n    return 0.0")
        for harmless in (f"# changed\n{text}\n", f"'Changed.'\n{text}", documented):
            path.write_text(harmless)
            assert source_hashes(algorithm) == before
        path.write_text(text + "changed = 1\n")
        after = source_hashes(algorithm)
        assert [key for key in after if after[key] != before[key]] == [name] * (name != "unrelated")
        before = after


def test_code_of_the_project_and_of_installed_packages_is_not_the_users():
    network = Model(nn.SmallCNN(4), (8, 8, 1))
    assert source_hashes(FedAvg(LocalTraining(), {"feddecorr": FedDecorr()}), network, [textwrap.dedent]) == {}


def test_a_file_is_found_without_an_import(folder):
    assert file_of("own_package.sibling") == folder / "own_package" / "sibling.py"
    assert "own_package" not in sys.modules
    for name in ("own_package.absent", "absent.inner", "own_method.inner", "", "a b", "..", "sys"):
        assert file_of(name) is None


MAIN = """
FACTOR = {factor}

def unrelated():
    return {unrelated}

def helper(x):
    return [FACTOR * y for y in x]

class Own:
    strength = {strength}

    def penalty(self):
        return helper([1])
"""


def test_definitions_of_a_script_are_hashed_one_by_one(monkeypatch):
    """Those of the run, and what they name; other lines of the script, as the number of rounds, may change."""

    def hash_of(**changes):
        main = type(sys)("__main__")
        exec(MAIN.format(**dict(factor=2, unrelated=3, strength=0.1) | changes), vars(main))
        monkeypatch.setitem(sys.modules, "__main__", main)
        return source_hashes([main.Own()])["__main__"]

    assert hash_of() == hash_of(unrelated=4)
    assert len({hash_of(), hash_of(factor=3), hash_of(strength=0.2)}) == 3
