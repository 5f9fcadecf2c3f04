"""FedBABU: the classifier keeps its random initial weights in all rounds; only the body is trained and averaged.

    u <- sum_i p_i u_i,     u_i minimises F_i(u, v^0);     each client then fine-tunes (u, v^0) on its own examples

Oh et al., "FedBABU: Toward Enhanced Representation for Federated Image Classification" (ICLR 2022). It is the same as
``LocalTraining(freeze="head")``: the head is the same for all clients, and has no weight decay. Fine-tuning is a stage
of own tests, which changes nothing for later rounds; in the paper it is 5 epochs of body and head, in Python
``simulate(..., finetuning=Finetuning(epochs=5))``. The authors' code averages bodies equally (``weighting="equal"``),
and scores the body that is best on the test set.

PFLlib averages by size. It fine-tunes for 10 epochs, once, from the body that the client itself trained in its last
round: the last average is never sent.
"""

from fedjax_collapse.methods.base import Method


class FedBABU(Method):
    """A head that is never trained."""

    freeze = "head"
