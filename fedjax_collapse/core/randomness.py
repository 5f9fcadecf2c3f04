"""The streams of randomness of a run: what each key is derived from, and by which number.

Every key is ``jax.random.fold_in`` of identities (round, client, epoch, step), never of a position, so the numbers that
are drawn depend neither on how clients are laid out nor on where a run was resumed:

    key of the run, split into
        variables              the initial model
            HEAD               the head, if the model draws it by itself
        rounds
            AVAILABILITY       the hour at which each client's day begins
            SPEEDS             how fast each client computes
            0, 1, ...          a round
                COHORT, DROPOUT, STRAGGLERS, UPLOADS
                CLIENTS
                    0, 1, ...  a client
                        name of a method    what it sends and reports
                        0, 1, ...           an epoch, split into
                            order           of its examples
                            steps
                                AUGMENTATION
                                0, 1, ...   a step: dropout
                                    name of a method, or "task"    the terms of its loss
"""

import enum
import zlib

import jax

from fedjax_collapse.core.records import Key

TASK = "task"  # next to the names of methods: the task's term of the loss


class Stream(enum.Enum):
    """A stream with a number of its own: the scope whose key it is derived from, and the number."""

    HEAD = "initial model", 1
    AVAILABILITY = "rounds", 2**31 - 1  # next to the numbers of rounds, from 0
    SPEEDS = "rounds", 2**31 - 2
    COHORT = "round", 0
    CLIENTS = "round", 1
    DROPOUT = "round", 2
    STRAGGLERS = "round", 3
    UPLOADS = "round", 4
    AUGMENTATION = "epoch", 2**31 - 1  # next to the numbers of its steps, from 0

    def key(self, of_scope: Key) -> Key:
        """The key of the stream, given that of its scope."""
        _, number = self.value
        return jax.random.fold_in(of_scope, number)


def method_key(key: Key, name: str) -> Key:
    """The key of a method, given that of a client's round or step."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()) & 0x7FFFFFFF)
