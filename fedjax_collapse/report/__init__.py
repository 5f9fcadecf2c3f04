"""The report of a study: from the arrays on disk to one self-contained HTML file, without training."""

from fedjax_collapse.report.page import write_report as write_report
from fedjax_collapse.report.study import Study as Study
from fedjax_collapse.report.study import read_study as read_study
from fedjax_collapse.report.table import final_table as final_table
