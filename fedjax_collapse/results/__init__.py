"""Results of studies and runs: one pandas frame, with the arrays next to it, and tables, figures and a page of it.

study = results.load("runs/quickstart")
study.frame  # a row for each run and evaluated round, a column for each metric
plot.accuracy(study)  # a matplotlib figure; plot.accuracy.select(study) is the frame that it draws
"""

from fedjax_collapse.results import plot as plot
from fedjax_collapse.results.comparing import recommendations as recommendations
from fedjax_collapse.results.comparing import verdict as verdict
from fedjax_collapse.results.export import tables_of as tables_of
from fedjax_collapse.results.export import write_tables as write_tables
from fedjax_collapse.results.page import write_report as write_report
from fedjax_collapse.results.plot.rounds import curves as curves
from fedjax_collapse.results.plot.spectrum import spectra_of
from fedjax_collapse.results.study import Results as Results
from fedjax_collapse.results.study import Run as Run
from fedjax_collapse.results.study import load as load
from fedjax_collapse.results.study import of_runs as of_runs
from fedjax_collapse.results.tables import final_table as final_table

spectra = spectra_of
