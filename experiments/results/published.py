"""Our numbers for the table of a paper, also those that no run records, but that a study's runs give together."""

from experiments.metrics import SECONDS, TO_TARGET
from experiments.paper import paper_of
from experiments.results.seconds import seconds_per_round
from experiments.results.study import Study, Summary
from experiments.results.targets import rounds_to_target


def summary_for_paper(study: Study) -> Summary:
    """The study's summary, and in it what the table of its paper is of, of finished runs; empty where there is none."""
    paper = paper_of(study.config)
    if paper and paper.metric == SECONDS:
        found = seconds_per_round(study.finished())
    elif paper and paper.metric == TO_TARGET and paper.target in study.arms:
        found = {cell: reached.rounds for cell, reached in rounds_to_target(study, paper.target).items()}
    else:
        return study.summary
    return {cell: {**metrics, paper.metric.name: found.get(cell, {})} for cell, metrics in study.summary.items()}
