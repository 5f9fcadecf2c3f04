"""What setup.cfg cannot say: the programs of ``experiments/`` come with the wheel, below a name of their own.

An editable installation is the clone itself, on one path, where type checkers and editors find the package, too.
"""

import sys

from setuptools import find_packages, setup

HOME = "fedjax_collapse_programs"
LIBRARY = find_packages(include=["fedjax_collapse", "fedjax_collapse.*"])
PROGRAMS = find_packages(include=["experiments", "experiments.*"], exclude=["experiments.notebooks"])

if "editable_wheel" in sys.argv:
    setup(packages=LIBRARY, package_dir={"": "."})
else:
    setup(
        packages=LIBRARY + [f"{HOME}.{name}" for name in PROGRAMS],
        package_dir={f"{HOME}.experiments": "experiments"},
        package_data={
            "fedjax_collapse": ["py.typed"],
            f"{HOME}.experiments.commands": ["template/*"],
            "fedjax_collapse.results.page": ["*.css", "*.jinja", "*.js"],
        },
    )
