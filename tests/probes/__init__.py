"""Methods of a user's own: a file each, of public names alone, as one would write it."""
