"""What the library is compared with: whole rounds in plain PyTorch, and images by Pillow and SciPy.

``rounds`` is the one loop over rounds, clients and steps; a method's reference is a ``PlainFedAvg`` that changes what
the method changes, in ``algorithms``, ``logits`` or ``regularizers``. ``beside`` runs both.
"""
