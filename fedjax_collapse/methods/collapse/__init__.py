"""Methods against dimensional collapse: terms of local training that spread a batch's features over more dimensions.

They change a client's loss only. Clients and server exchange what they do in federated averaging, but for FedMR's
prototypes, so that any of them composes with any other family.
"""
