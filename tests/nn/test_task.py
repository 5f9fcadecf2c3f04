"""Tasks: the scores of tokens, and of several labels."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from conftest import assert_close, check
from reference.tokens import sentences

from fedjax_collapse import CLASSIFICATION, MULTI_LABEL, REGRESSION, FedAvg, Federation, Model, next_word, nn
from fedjax_collapse.core.records import Batch, Examples, Outputs
from fedjax_collapse.data.batches import get_batch
from fedjax_collapse.losses import masked_mean, summed_binary_cross_entropy
from fedjax_collapse.nn.task import NEXT_CHARACTER, named
from fedjax_collapse.run.runs import Run, Schedule, prepare

WORDS = 5
LABELS = np.array([[3, 6, 2, 8, 0, 0], [1, 4, 5, 6, 2, 3]])
PREDICTED = np.array([[3, 6, 1, 8, 0, 2], [1, 4, 4, 2, 2, 8]])


def test_accuracies_of_next_words():
    """TFF's, of two sentences and a row of padding: 6 of 10 targets, 5 of 8 and 4 of 7."""
    task = next_word(WORDS)
    examples = Examples(*(jnp.asarray(part) for part in (PREDICTED, LABELS)), None, None, pad=jnp.asarray(0))
    batch = get_batch(examples, jnp.array([0, 1, 1]), jnp.array([True, True, False]))
    logits = jnp.eye(9)[batch.inputs.reshape(-1)]
    outputs = Outputs(logits, logits)

    def scores():
        for name in (task.metric, *task.further):
            weights = task.weights(batch, name)
            yield name, (jnp.sum(weights & task.score(outputs, batch)), jnp.sum(weights))

    found = jax.jit(lambda: dict(scores()))()
    assert found == {"accuracy": (4, 7), "accuracy_no_oov": (5, 8), "accuracy_with_oov": (6, 10)}
    losses = -torch.log_softmax(torch.tensor(np.array(logits)), 1).numpy()[np.arange(18), batch.labels]
    assert_close(jax.jit(task.loss)(outputs, batch), losses[np.array(batch.mask)].mean(), 1e-6)


def test_thousands_of_classes():
    """Loss and score of tokens are those of classification; of equal logits the first counts."""
    rng = np.random.default_rng(0)
    logits = jnp.asarray(np.round(rng.normal(size=(40, 7))))
    batch = Batch(logits, jnp.asarray(rng.integers(0, 7, 40)), jnp.asarray(rng.random(40) < 0.7))
    tasks, given = (NEXT_CHARACTER, CLASSIFICATION), (Outputs(logits, logits), batch)
    assert_close(*(task.loss(*given) for task in tasks), 1e-6)
    assert np.array_equal(*(task.score(*given) for task in tasks))
    assert not NEXT_CHARACTER.score(Outputs(logits, logits * np.nan), batch).any()


def test_equal_names_give_equal_tasks():
    assert named("next_word", 9) == next_word(5) != next_word(6)
    assert named("classification", 3) == CLASSIFICATION and named("regression", 0) == REGRESSION
    assert named("next_character", 90) == NEXT_CHARACTER and named("multi_label", 500) == MULTI_LABEL
    for name, classes, message in (("words", 9, "expected one of classification"), ("next_word", 4, "0 words")):
        check(message, named, name, classes)


def test_several_labels():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(6, 9)), rng.random((6, 9)) < 0.3
    mask = np.array([1, 1, 0, 1, 1, 1], bool)
    labels[0] = False
    batch = Batch(jnp.zeros((6, 1)), jnp.asarray(labels, jnp.uint8), jnp.asarray(mask))
    outputs = Outputs(jnp.zeros((6, 1)), jnp.asarray(np.where(mask[:, None], logits, np.nan), jnp.float32))
    rows, targets = (torch.tensor(array[mask].astype(float)) for array in (logits, labels))
    expected = torch.nn.functional.binary_cross_entropy_with_logits(rows, targets)
    assert_close(MULTI_LABEL.loss(outputs, batch), expected, 1e-6)
    view = type("View", (), dict(outputs=outputs, batch=batch))
    assert_close(summed_binary_cross_entropy(view), 5 * expected, 1e-6)
    top = np.argsort(-logits, 1)[:, :5]
    hits = np.take_along_axis(labels, top, 1)[mask].sum()
    recall = masked_mean(MULTI_LABEL.score(outputs, batch), MULTI_LABEL.weights(batch))
    assert_close(recall, hits / labels[mask].sum(), 1e-6)
    assert MULTI_LABEL.metric == "recall_at_5"


def test_wrong_outputs():
    def outputs(*rows):
        return Outputs(jnp.zeros((*rows, 3)), jnp.zeros((rows[0], 9)))

    one, batch = outputs(1), Batch(jnp.zeros((1, 2)), jnp.zeros((1, 4)), jnp.ones(1, bool))
    of_tokens, of_rows = r"\[batch \* 6, d\], a row for each token .*predicts=\"every\" \(in a", r"\[batch, d\]"
    for message, function, *arguments in (
        (rf"features have shape \[1, 3\], expected {of_tokens}", next_word(WORDS).check, one, 9, 6),
        (rf"\[6, 3\], expected {of_rows}.*predicts=\"last\" \(in a", CLASSIFICATION.check, outputs(6), 9),
        (rf"3\], expected {of_rows}, a row for each example as labels are$", CLASSIFICATION.check, outputs(1, 2), 9),
        (r"logits have shape \[9\], expected \[10\]", next_word(6).check, outputs(6), 10, 6),
        (r"logits \[9\] of labels \[4\], expected a logit for each label", MULTI_LABEL.loss, one, batch),
        ("recall at 5 of 4 labels; lower top", MULTI_LABEL.score, one, batch),
        (r"labels \[4\] of an example, expected one integer, its class; or take", CLASSIFICATION.loss, one, batch),
    ):
        check(message, function, *arguments)


def test_wrong_labels_of_tokens():
    federation = sentences()
    inputs, labels, names = (*map(np.asarray, federation.train[:2]), federation.class_names)
    for own, test, count, message in (
        (labels[:, 0], labels, None, r"expected integers \[examples, length\] with pad"),
        (0 * labels, labels, None, "all are 0, which is padding"),
        (labels, labels[:, 1:], None, r"training labels are \(6,\), test labels \(5,\); expected the same shape"),
        (labels, labels, 10, "label 11 has no name among 10 class names"),
    ):
        check(message, type(federation).from_inputs, inputs, own, [[0]], inputs, test, class_names=names[:count], pad=0)


def test_networks_of_tokens_and_one_label_of_an_example():
    """``shakespeare_lstm`` predicts every character, and LEAF has windows and the next one; or the reverse."""
    of_tokens = sentences()
    inputs, names = np.asarray(of_tokens.train.inputs), of_tokens.class_names
    labels = np.asarray(of_tokens.train.labels)[:, 0]
    of_examples = Federation.from_inputs(inputs, labels, of_tokens.owned_rows(), inputs, labels, class_names=names)
    for predicts, federation, other in (("every", of_examples, "last"), ("last", of_tokens, "every")):
        network = nn.ShakespeareLSTM(len(names), hidden=2, predicts=predicts)
        model = Model(network, federation.input_shape, input_dtype="int32")
        check(f'expected .*; shakespeare_lstm has them with predicts="{other}"', start, federation, model)


def test_ids_beyond_the_vocabulary():
    """Which the table of the embedding would replace by its last row."""
    tokens, labels = np.array([[1, 2, 3], [4, 5, 9]]), np.array([0, 1])
    network = nn.ShakespeareLSTM(2, vocabulary=9, hidden=2, predicts="last")
    for train, test, found in ((tokens, tokens, "train .* 1 to 9"), (tokens % 9, tokens - 2, "test .* -1 to 7")):
        federation = Federation.from_inputs(train, labels, [[0, 1]], test, labels)
        message = rf"data: {found}, expected 0 to 8; correct them, or set vocabulary="
        check(message, start, federation, Model(network, (3,), input_dtype="int32"))
    federation = Federation.from_inputs(tokens, labels, [[0, 1]], tokens, labels)
    start(federation, Model(network.clone(vocabulary=10), (3,), input_dtype="int32"))


def test_a_task_of_classes_needs_some():
    inputs = np.ones((4, 3))
    no_classes = Federation.from_inputs(inputs, np.arange(4), [range(4)], inputs, np.arange(4), class_names=())
    for classes in (0, 3):
        message = "data: the task predicts classes, but there are no class_names; give integers as"
        check(message, start, no_classes, Model(nn.MLP(classes, hidden=(2,)), (3,)))
    start(no_classes, Model(nn.MLP(1, hidden=(2,)), (3,), task=REGRESSION))


def start(federation, model):
    """Checks a run, without training."""
    prepare(Run(federation, FedAvg(), jax.random.key(0)), model, Schedule(1))
