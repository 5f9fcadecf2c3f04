"""What setup.cfg cannot say: the programs of ``experiments/`` come with the wheel, below a name of their own."""

from setuptools import find_packages, setup

HOME = "fedjax_collapse_programs"
PROGRAMS = find_packages(include=["experiments", "experiments.*"], exclude=["experiments.notebooks"])

setup(
    packages=find_packages(include=["fedjax_collapse", "fedjax_collapse.*"]) + [f"{HOME}.{name}" for name in PROGRAMS],
    package_dir={f"{HOME}.experiments": "experiments"},
    package_data={f"{HOME}.experiments.results": ["*.css", "*.jinja", "*.js"]},
)
