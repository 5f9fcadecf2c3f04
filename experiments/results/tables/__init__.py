"""The tables of a study: means and their spread, comparisons of arms, targets and times, with the notes below them."""
