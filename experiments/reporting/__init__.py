"""The report of a study: from the arrays on disk to one self-contained HTML file, without training."""

from experiments.reporting.page import write_report as write_report
from experiments.reporting.reading import read_study as read_study
from experiments.reporting.study import Study as Study
from experiments.reporting.table import final_table as final_table
