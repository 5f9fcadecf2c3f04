"""The report of a study: from the arrays on disk to one self-contained HTML file, without training."""

from experiments.results.page import write_report as write_report
from experiments.results.reading import read_study as read_study
from experiments.results.study_results import Study as Study
from experiments.results.table import final_table as final_table
