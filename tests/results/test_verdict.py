"""The finding of a study, and the figure that has it as its title."""

import numpy as np
import pytest
from conftest import cases
from study_files import configure, rewrite, write_run

from experiments.commands import report
from fedjax_collapse.results import load, plot
from fedjax_collapse.results.comparing import verdict


def write(path, accuracies, ranks=(9.0, 9.0, 9.0), others=("other",)):
    """Three seeds: all arms are right on 50 %, with a rank of 5, but for FedDecorr, which is as it is given here."""
    arms = {"fedavg": {}, "feddecorr": {"methods": {"feddecorr": {}}}} | {arm: {} for arm in others}
    for arm in arms:
        for seed in range(3):
            own = (accuracies[seed], ranks[seed]) if arm == "feddecorr" else (0.5, 5.0)
            last = dict(zip(("accuracy", "effective_rank"), own, strict=True))
            write_run(path / arm / f"seed{seed}", [dict(accuracy=0.1, effective_rank=1.0), last], counts=seed)
            spectrum = np.exp(-np.arange(8.0))[None]
            np.savez(path / arm / f"seed{seed}" / "spectra.npz", round=[2], server=spectrum, local=spectrum)
    return configure(path, rounds=2, seeds=[0, 1, 2], arms=arms)


MOST = "feddecorr raises effective rank most: {} times that of fedavg, {}. "
MOST += "feddecorr raises accuracy most: {} points over fedavg, {}"
NONE = "No arm raises effective rank: feddecorr comes nearest with {} times that of fedavg, {}. "
NONE += "No arm raises accuracy: feddecorr comes nearest with {} points over fedavg, {}"


@cases(
    ((0.6, 0.7, 0.51), (6.0, 8.5, 5.0), MOST, ("1.3", "2 of 3 (1.0 to 1.7)", "+10.3", "3 of 3 (+1.0 to +20.0)")),
    ((0.6, 0.7, 0.49), (None, 6.0, 6.0), MOST.partition("{}. ")[2], ("+9.7", "2 of 3 (−1.0 to +20.0)")),
    ((0.6, 0.2, 0.5), (4.0, 4.0, 5.5), NONE, ("0.9", "1 of 3 (0.8 to 1.1)", "−6.7", "1 of 3 (−30.0 to +10.0)")),
    ((0.5, 0.5, 0.501), (5.0, 5.0, 5.1), NONE, ("1.0", "1 of 3 (1.0 to 1.0)", "+0.0", "1 of 3 (+0.0 to +0.1)")),
    ((0.6, None, None), (6.0, 6.0, 6.0), MOST, ("1.2", "in the only seed", "+10.0", "in the only seed")),
    ((None, None, None), (6.0, 6.0, 6.0), "", ()),
)
def test_it_says_what_the_numbers_say(accuracies, ranks, sentence, shares, tmp_path):
    words = [f"higher in {of.replace(' (', ' seeds (')}" if " of " in of else of for of in shares]
    assert verdict(load(write(tmp_path, accuracies, ranks))) == sentence.format(*words)


def test_what_raises_rank_and_what_raises_accuracy_may_be_two_arms(tmp_path):
    """Each is named with what it does to the other; an arm without methods is none of them."""
    write(tmp_path, (0.4, 0.7, 0.5), (10.0, 15.0, 20.0))
    arms = {"fedavg": {}, "feddecorr": {"methods": {"feddecorr": {}}}, "other": {"methods": {"ccvr": {}}}}

    def own(row, i, seed):
        return row | ({"accuracy": 0.6 + seed / 10, "effective_rank": 4.0} if i else {})

    rewrite(tmp_path, "other/*/metrics.jsonl", own)
    assert verdict(load(configure(tmp_path, arms=arms))) == (
        "feddecorr raises effective rank most: 3.0 times that of fedavg, higher in 3 of 3 seeds (2.0 to 4.0), with "
        "+3.3 points of accuracy, higher in 1 of 3 seeds (−10.0 to +20.0). other raises accuracy most: +20.0 points "
        "over fedavg, higher in 3 of 3 seeds (+10.0 to +30.0), at 0.8 times the rank"
    )


@pytest.mark.usefixtures("unrendered")
def test_the_report_and_the_headline_have_it(tmp_path, capsys):
    """The figure shows the mean and every seed, and is the same file again."""
    study = load(write(tmp_path / "study", (0.6, 0.7, 0.8), others=()))
    assert report.main([str(study.path), "--headline=figure.jpg"]) == 2
    out, err = capsys.readouterr()
    assert verdict(study) in out and "suffix of --headline 'jpg'" in err
    assert f"<strong>{verdict(study)}.</strong>" in (study.path / "report.html").read_text()
    figure = plot.headline(study)
    assert figure.get_suptitle().split() == verdict(study).split() and figure.get_suptitle().count(".\n") == 1
    accuracy, rank, spectrum = figure.axes
    for axes, mean, ends in ((accuracy, 70, {60, 70, 80}), (rank, 9, {9})):
        *seeds, _, line = axes.lines  # the means of both arms come last
        assert {round(of.get_ydata()[-1], 9) for of in seeds[3:]} == ends
        assert line.get_ydata()[-1] == pytest.approx(mean)
    for line in spectrum.lines:
        assert 99.5 < line.get_ydata().sum() <= 100 + 1e-9
    files = [plot.save_figure(plot.headline(study), tmp_path / f"{name}.svg") for name in "ab"]
    assert files[0].read_bytes() == files[1].read_bytes()
