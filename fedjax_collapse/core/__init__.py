"""What every other package builds on: records, options and their checks, randomness, parts of networks, files."""
