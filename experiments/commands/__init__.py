"""The subcommands of ``fedjax-collapse``, a file each."""
