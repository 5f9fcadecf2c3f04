"""``hours.py``: the work of published studies, and how long it takes by measured rates."""

import pytest

from experiments.benchmarks import hours
from experiments.commands import hours as command
from fedjax_collapse import FedAvg
from fedjax_collapse.methods import MOON


def published(config):
    """The cells of a published study, by name."""
    return {str(cell): cell for cell in hours.studies([config])[config].cells}


@pytest.mark.parametrize(
    ("config", "cell", "client_steps", "step"),
    [  # rounds x clients x epochs x batches of a client of mean size
        ("feddecorr/table1", "setting cifar10-0.05, arm moon", 100 * 10 * 10 * 79, ("mobilenet_v2", 32, 10, 64)),
        # a tenth of the clients; the last partial batch is left out
        ("fedmr/table2", "setting cifar100-P100C10, arm fedavg", 400 * 10 * 10 * 3, ("wide_resnet", 32, 100, 128)),
        ("feddecorr/table3", "setting office, arm fedbn", 300 * 4 * 1 * 1, ("alexnet", 256, 10, 64)),  # 62 images
    ],
)
def test_the_work_of_a_published_run(config, cell, client_steps, step, monkeypatch):
    monkeypatch.setattr(hours, "relative_operations", lambda algorithm, outputs: 1.5)
    work = hours.work(published(config)[cell])
    assert work.client_steps == client_steps and work.operations == 1.5
    name, size, classes, batch_size = step
    assert work.step == ((("name", name),), (size, size, 3), classes, batch_size)


def test_operations_of_a_method():
    """MOON runs two models more on each batch, and a step is about three runs of one."""
    assert 1.5 < hours.relative_operations(FedAvg(methods={"moon": MOON()}), {}) < 1.8


def test_a_network_that_was_not_measured_is_scaled_by_its_operations():
    def rate(name, size):
        step = hours.Step((("name", name),), (size, size, 3), 10, 64)
        return hours.samples_per_second(step, (("resnet20", 500.0),))

    assert rate("resnet20", 32) == (500.0, "resnet20")
    assert rate("resnet20", 64)[0] == pytest.approx(500 / 4, rel=0.05)  # four times the pixels
    assert rate("resnet32", 32) == (pytest.approx(500 * 40.8 / 69.2, rel=0.02), "resnet20")  # multiply-adds in millions


def test_hours_of_a_study(capsys, monkeypatch):
    """Client-steps of all runs, each of 64 samples at the rate that is given."""
    monkeypatch.setattr(hours, "relative_operations", lambda algorithm, outputs: 1.5)
    assert command.main(["feddecorr/figure1", "--rates=resnet20=64000"]) == 0
    steps, study = capsys.readouterr().out.split("\n\n")
    assert "| resnet20 | 32x32x3 | 10 | 64 | 64,000 | resnet20 |" in steps
    # 4 cells, 3 seeds, 790,000 client-steps of 1 ms each, with half as many operations again as FedAvg's
    assert "| feddecorr/figure1:full | 12 | 14.2 | 4 |" in study


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fedecorr/table1"], "did you mean feddecorr/table1"),
        (["feddecorr/figure1", "--rates=resnet21=5"], "network in --rates 'resnet21'"),
        (["feddecorr/figure1", "--rates=resnet20=fast"], "'resnet20=fast': expected NETWORK=NUMBER"),
        (["feddecorr/figure1", "--rates=resnet20=nan"], "'resnet20=nan': expected NETWORK=NUMBER"),
    ],
)
def test_wrong_input_is_one_line(arguments, message, capsys):
    try:
        assert command.main(arguments) == 2
    except SystemExit as stopped:
        assert stopped.code == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_study_of_data_that_are_not_published(capsys, monkeypatch):
    monkeypatch.delitem(hours.PUBLISHED, "cifar10")
    assert command.main(["feddecorr/figure1"]) == 2
    assert "data source 'cifar10': expected one of cifar100" in capsys.readouterr().err
