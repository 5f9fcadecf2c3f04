"""Clients that drop out with probability 0.3, and stragglers that do half of their steps."""

from fedjax_collapse import Participation

UNRELIABLE = Participation(fraction=0.8, dropout=0.3, stragglers=0.5, straggler_share=0.5)
