"""Methods against client drift: local training on heterogeneous data moves away from the common optimum.

They pull params, gradients, predictions or features towards the server's, correct each step by control variates, look
for flat minima, or weigh updates by the number of steps. Some keep a state at every client.
"""
