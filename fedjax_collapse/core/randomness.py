"""The streams of random numbers of a run, and how their keys are derived.

Every key is ``jax.random.fold_in`` of identities (round, client, epoch, step), never of a position. The drawn numbers
depend neither on the layout of clients nor on the round in which a run was resumed:

    key of the run, split into
        variables              the initial model
            HEAD               the head, if the model initialises it separately
        rounds                 with noise on the mean upload, of the run's name and description as well
            AVAILABILITY       the hour at which each client's day begins
            SPEEDS             how fast each client computes
            FIRST_REPORTS      of the clients before the first round; below it as below CLIENTS
            0, 1, ...          a round
                COHORT, DROPOUT, STRAGGLERS, UPLOADS
                FINETUNING         likewise, of the fine-tuning after this many rounds
                DISPATCH
                    name of a method    what the server makes for each client after the round
                NOISE
                    name of a method    what the server adds to the mean upload
                CLIENTS
                    0, 1, ...  a client
                        name of a method    its upload and its report
                        0, 1, ...           an epoch, split into
                            order           of its examples
                            steps
                                AUGMENTATION        of the first view
                                    2**30 + 1, ...  of further views
                                0, 1, ...   a step: dropout
                                    name of a method, or "task"    the terms of its loss
"""

import enum
import hashlib
import zlib

import jax

from fedjax_collapse.core.records import Key

TASK = "task"  # alongside the names of methods: the task's term of the loss


class Stream(enum.Enum):
    """The streams with a fixed number: the scope whose key the stream is derived from, and the number."""

    HEAD = "initial model", 1
    AVAILABILITY = "rounds", 2**31 - 1  # alongside the numbers of rounds, from 0
    SPEEDS = "rounds", 2**31 - 2
    FIRST_REPORTS = "rounds", 2**31 - 3
    COHORT = "round", 0
    CLIENTS = "round", 1
    DROPOUT = "round", 2
    STRAGGLERS = "round", 3
    UPLOADS = "round", 4
    FINETUNING = "round", 5
    DISPATCH = "round", 6
    NOISE = "round", 7
    AUGMENTATION = "epoch", 2**31 - 1  # alongside the numbers of its steps, from 0

    def key(self, of_scope: Key) -> Key:
        """Returns the key of the stream, given the key of its scope."""
        _, number = self.value
        return jax.random.fold_in(of_scope, number)


def key_of_run(key: Key, identity: str) -> Key:
    """Returns the key of a run's rounds that no run of another identity has."""
    digest = hashlib.sha256(identity.encode()).digest()
    for start in (0, 4):
        key = jax.random.fold_in(key, int.from_bytes(digest[start : start + 4], "little"))
    return key


def method_key(key: Key, name: str) -> Key:
    """Returns the key of a method, given the key of a client's round or step."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()) & 0x7FFFFFFF)
