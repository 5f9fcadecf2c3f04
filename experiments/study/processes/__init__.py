"""The processes of a study: workers on one machine, Slurm jobs, hosts, and the locks between them."""
