"""The figures of a study: how they are drawn, one file for each kind, and how they become small SVG."""
