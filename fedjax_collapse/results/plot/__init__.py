"""The figures of results: functions that return a matplotlib figure, or None if there is no data for it.

Each takes ``Results``; its attribute ``select`` returns the frame that it draws.
"""

from fedjax_collapse.results.plot.drawing import save_figure as save_figure
from fedjax_collapse.results.plot.features import head_spectra as head_spectra
from fedjax_collapse.results.plot.features import layer_nc1 as layer_nc1
from fedjax_collapse.results.plot.features import layer_probes as layer_probes
from fedjax_collapse.results.plot.features import layer_ranks as layer_ranks
from fedjax_collapse.results.plot.features import sphere as sphere
from fedjax_collapse.results.plot.features import tsne_classes as tsne_classes
from fedjax_collapse.results.plot.features import tsne_clients as tsne_clients
from fedjax_collapse.results.plot.losses import client_loss as client_loss
from fedjax_collapse.results.plot.losses import within_round as within_round
from fedjax_collapse.results.plot.partition import partition as partition
from fedjax_collapse.results.plot.rounds import accuracy as accuracy
from fedjax_collapse.results.plot.rounds import collapse_ratio as collapse_ratio
from fedjax_collapse.results.plot.rounds import domains as domains
from fedjax_collapse.results.plot.rounds import effective_rank as effective_rank
from fedjax_collapse.results.plot.rounds import headline as headline
from fedjax_collapse.results.plot.rounds import measurements as measurements
from fedjax_collapse.results.plot.rounds import score as score
from fedjax_collapse.results.plot.rounds import training_loss as training_loss
from fedjax_collapse.results.plot.spectrum import absolute_spectra as absolute_spectra
from fedjax_collapse.results.plot.spectrum import client_spectra as client_spectra
from fedjax_collapse.results.plot.spectrum import spectra as spectra
from fedjax_collapse.results.plot.sweep import sweep as sweep
from fedjax_collapse.results.plot.times import timing as timing
