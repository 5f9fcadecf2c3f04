"""Figures 2 to 7 of FedDecorr (TPAMI 2023), and 10 of its ICLR version: spectra on CIFAR100, and R.

    python experiments/launch.py --config=experiments/configs/feddecorr/figures2_7.py:offline --workdir=runs/figures2_7

* ``:full``: FedAvg with and without FedDecorr at four skews, MobileNetV2. ``docs/data.md`` says how to get the data.
* ``:offline``: the same on 8x8 digits, with a small network.
* ``:smoke``: two rounds at two skews.

The report has spectra of global and local models, significant dimensions, effective rank and R. All local models are
measured: that of the first client is drawn beside the server's, as in the released code, and R is a mean and range over
clients. The other local models of FedAvg are the ICLR version's appendix E (figure 10); which client the main text
shows is not known. TPAMI shows FedDecorr at 0.01 and 0.05 alone; here it is trained at all four. Not known: the base of
the logarithm, and over how many singular values R goes (100 are plotted); ours are natural, and all.
"""

from experiments.configs.feddecorr import base

ALPHAS = (0.01, 0.05, 0.25, "iid")  # paper

SMOKE = ["digits-0.05", "digits-iid"]

get_config = base.grid(base.skews(ALPHAS), "cifar100", smoke=SMOKE, watch="all")  # paper: appendix E
