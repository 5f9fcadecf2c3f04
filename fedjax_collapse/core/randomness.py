"""The streams of randomness of a run: how each key is derived, and from which number.

Every key is ``jax.random.fold_in`` of identities (round, client, epoch, step), never of a position, so the numbers that
are drawn depend neither on the layout of clients nor on where a run was resumed:

    key of the run, split into
        variables              the initial model
            HEAD               the head, if the model initialises it separately
        rounds
            AVAILABILITY       the hour at which each client's day begins
            SPEEDS             how fast each client computes
            0, 1, ...          a round
                COHORT, DROPOUT, STRAGGLERS, UPLOADS
                CLIENTS
                    0, 1, ...  a client
                        name of a method    its upload and its report
                        0, 1, ...           an epoch, split into
                            order           of its examples
                            steps
                                AUGMENTATION
                                0, 1, ...   a step: dropout
                                    name of a method, or TASK    the terms of its loss
"""

import zlib

import jax

from fedjax_collapse.core.records import Key

# alongside the numbers of rounds, from 0
AVAILABILITY = 2**31 - 1
SPEEDS = 2**31 - 2

# within a round
COHORT = 0
CLIENTS = 1
DROPOUT = 2
STRAGGLERS = 3
UPLOADS = 4

# within an epoch, alongside the numbers of its steps, from 0
AUGMENTATION = 2**31 - 1

# within a step, alongside the names of methods
TASK = "task"

# within the initial model
HEAD = 1


def clients_key(key: Key) -> Key:
    """Returns the key from which the keys of a round's clients are derived, given the round's key."""
    return jax.random.fold_in(key, CLIENTS)


def method_key(key: Key, name: str) -> Key:
    """Returns the key of a method, given the key of a client's round or step."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()) & 0x7FFFFFFF)
