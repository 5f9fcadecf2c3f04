"""Functions of the arrays that rounds save: spectra, ranks, neural collapse and other measurements."""
