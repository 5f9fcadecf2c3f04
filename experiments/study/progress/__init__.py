"""What a study shows while it runs."""
