"""Methods against client drift: local training on heterogeneous data moves away from the common optimum.

They pull parameters, gradients, predictions or features towards those of the server, correct each step by control
variates, look for flat minima, or weigh updates by the number of steps. Some keep a state at every client.
"""
