"""From a config file and a command line to a resolved, validated study, and from its values to objects."""
