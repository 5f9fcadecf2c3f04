"""What a command prints of warnings."""

import warnings

from experiments import startup


def test_a_warning_about_data_is_one_line(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    startup.check_packages()
    assert warnings.formatwarning(UserWarning("two are there"), UserWarning, "a.py", 1) == "warning: two are there\n"
    assert warnings.formatwarning("old", DeprecationWarning, "a.py", 1).startswith("a.py:1: DeprecationWarning: old")
