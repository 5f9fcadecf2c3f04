"""The systems that the benchmark compares: this library and others, each as an iterator of rounds."""
