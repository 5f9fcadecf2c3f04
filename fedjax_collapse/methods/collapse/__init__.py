"""Methods against dimensional collapse: terms of local training that spread a batch's features over more dimensions.

They change a client's loss only. Except for FedMR's prototypes, clients and server exchange the same as in federated
averaging, so these methods combine with any other family.
"""
