"""Local training's hyper-parameters, optimizers and schedules, and the aggregation of clients' uploads."""
