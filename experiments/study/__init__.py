"""Training a study: its folder, processes, console, and what each start of it writes down."""
