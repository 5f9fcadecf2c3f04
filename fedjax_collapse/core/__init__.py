"""The foundation of all other packages: records, options and their checks, randomness, parts of networks, files."""
