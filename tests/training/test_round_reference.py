"""Whole rounds of every method that has a reference, against one loop in plain PyTorch (``tests/reference``)."""

import jax
import numpy as np
import pytest
from conftest import assert_close
from reference import adapters, algorithms, closed_forms, logits, personal, personal_dispatch, personal_heads, uploads
from reference import personal_receive as own
from reference import regularizers as terms
from reference.beside import COHORT_SIZE, Case, assert_same_rounds
from reference.networks import TorchETF, TorchSimplex
from reference.rounds import TRAINING, Rounds, cohort_of
from reference.tokens import FedDecorrOnTokens, TokenRounds, TorchStackOverflow, sentences

from fedjax_collapse import FedAvg, Method, Model, engine, methods, next_word, nn, simulate
from fedjax_collapse.nn.heads import ETF, Shifted, Simplex, TwoHeads
from fedjax_collapse.optim import schedules
from fedjax_collapse.schema import discovery
from fedjax_collapse.schema.options import with_options

DECAYING = TRAINING.replace(schedule=jax.tree_util.Partial(schedules.decay, factor=0.5))
CAREFUL = DECAYING.replace(clip_norm=0.5, drop_last=True, freeze="head")
DECORR = {"feddecorr": methods.FedDecorr(0.1, "official")}
DYN, SCAFFOLD = methods.FedDyn(alpha=0.1), methods.Scaffold("fednova")
PAPER = dict(intra=1e-3, inter=0.5, variant="paper", eps=1e-3)
LITE = dict(variant="official", min_count=3, negatives="all", lite=3, submission=0.5, submission_seed=1)
ON_ETF = dict(head=with_options(ETF, seed=3), make=TorchETF)
SHARP = dict(rounds=3, key=3)  # see test_cohorts_of_sharp_methods


def fedmr(method, *plain, **options):
    return Case(method, terms.PlainFedMR(*plain, **options))


def on_logits(method, task=None, term=None, on_all=False, **options):
    return Case(method, logits.OnCounts(task, term, on_all), DECORR, "skewed", **options)


def fedlesam(plain, beside, **options):
    return Case(methods.FedLESAM(0.3), plain, beside, **SHARP, **options)


def on_adapters(method, plain, **options):
    """At a rate at which adapters, whose b is 0 at first, move far from one another."""
    training = TRAINING.replace(learning_rate=0.1, weight_decay=options.pop("weight_decay", 1e-3))
    return Case(method, plain, training=training, make=adapters.TorchMLP, adapters=adapters.ADAPTERS, **options)


CASES = {  # the method's name, perhaps with a variant after a comma
    "fedprox, feddecorr, scaffold": Case(methods.FedProx(0.4), terms.PlainFedProx(), {**DECORR, "scaffold": SCAFFOLD}),
    "feduv, and terms of covariances": Case(
        methods.FedUV(0.3, 0.2, kernel_scale=1), terms.PlainSpread(), dict(
            decov=methods.DeCov(0.5), structured_decov=methods.StructuredDeCov(0.6, eta=0.1, num_groups=4),
            vicreg=methods.VICReg(0.5, 2.0, gamma=0.7, eps=1e-3),
            singular_value_variance=methods.SingularValueVariance(0.7), weak_sigreg=methods.WeakSIGReg(0.4),
        )
    ),
    **{f"moon, {first}": Case(methods.MOON(2.0, 0.3, first), terms.PlainMOON(first))
       for first in ("received", "random_init", "random_later")},
    "fedmr, lite": fedmr(
        methods.FedMR(0.1, 0.5, eps=1e-3, **LITE), terms.official_intra, terms.lite_margin, submission=(0.5, 1)
    ),
    "fedmr, training mode": fedmr(
        methods.FedMR(**PAPER, prototype_mode="train"), terms.paper_intra, terms.local_margin, mode="train"
    ),
    "fedmr, no margin": fedmr(
        methods.FedMR(8**2 * 1e-3, 0.5, "paper", True, eps=1e-3, margin=False), terms.paper_intra, terms.no_margin
    ),
    "fedproc": Case(methods.FedProc(ramp_rounds=4.0), terms.PlainFedProc("fedproc")),
    "fedrcl": Case(methods.FedRCL(0.5, 2.0, temperature=0.2, threshold=0.3), terms.PlainFedRCL()),
    "balanced_softmax": on_logits(methods.BalancedSoftmax(0.7), logits.balanced),
    "fedlc": on_logits(methods.FedLC(0.3), logits.fedlc),
    "fedlc, others": on_logits(methods.FedLC(0.02, "others", "floor"), logits.fedlc_without_own),
    "fedlc, global": on_logits(methods.FedLC(0.3, counts="global"), logits.fedlc, on_all=True),
    "fedrs": on_logits(methods.FedRS(0.3), logits.fedrs),
    "fedrs, official": on_logits(methods.FedRS(0.3, "continuous", use_bias=False), logits.fedrs_without_bias),
    "fedntd": on_logits(methods.FedNTD(0.6, 3.0), term=logits.fedntd),
    "fedvls": on_logits(methods.FedVLS(1.0, 0.4, 0.2), logits.vls_task, logits.vls_official),
    "fedvls, paper": on_logits(methods.FedVLS(0.0, 0.4, 0.2, variant="paper"), term=logits.vls_paper),
    "fedetf, momentum kept": on_logits(
        methods.FedETF(), logits.etf, **ON_ETF, training=DECAYING.replace(momentum_reset=False)
    ),
    "fedgela": on_logits(methods.FedGELA(0.5), logits.gela, **ON_ETF),
    "feddr_plus": Case(
        methods.FedDrPlus(0.8), logits.PlainDr(), data="skewed", head=with_options(Simplex, seed=3), make=TorchSimplex
    ),
    "scaffold, lost uploads": Case(  # without momentum the weights of gradients in an update are all 1
        methods.Scaffold(), algorithms.PlainScaffold(), training=TRAINING.replace(momentum=0.0),
        rounds=3, upload_loss=0.5,
    ),
    "fednova": Case(methods.FedNova(), algorithms.PlainFedNova()),
    "feddyn, clipping, drop_last, schedule, frozen head": Case(DYN, algorithms.PlainFedDyn(), training=CAREFUL),
    "feddc": Case(methods.FedDC(alpha=0.1), algorithms.PlainFedDC()),
    "fedexp, top_k, private head": Case(
        methods.FedExP(eps=1e-6), algorithms.PlainFedExP(), {"top_k": methods.TopK(0.25)}, "of_one_class",
        private="head", key=2,
    ),
    "fedsam, adaptive, clipping, drop_last, schedule, frozen head": Case(
        methods.FedSAM(0.3, adaptive=True), algorithms.AdaptiveWithFrozenHead(), training=CAREFUL, **SHARP
    ),
    "fedsam, fedcm": Case(
        methods.FedSAM(0.3), algorithms.MoFedSAM(), {"fedcm": methods.FedCM(0.4)}, training=DECAYING, **SHARP
    ),
    "fedasam": Case(methods.FedASAM(rho=0.3), algorithms.PlainASAM(), **SHARP),
    "fedlesam, scaffold": fedlesam(
        algorithms.LESAMOnScaffold(), {"scaffold": methods.Scaffold("fednova", strength=0.1)}
    ),
    "fedlesam, feddyn, private BatchNorm": fedlesam(algorithms.LESAMOnDyn(), {"feddyn": DYN}, private="batch_norm"),
    **{name: Case(method(finetune=True), closed_forms.PlainClosedForm(getattr(closed_forms, name)))
       for name, method in (("fed3r", methods.Fed3R), ("afl", methods.AFL), ("fedcgs", methods.FedCGS))},
    "ditto": Case(methods.Ditto(0.5), personal.PlainDitto(0.5)),
    "fedproto": Case(methods.FedProto(0.6), own.PlainFedProto(0, True), data="skewed"),
    "fedproto, last epoch": Case(
        methods.FedProto(0.6, collected="last_epoch"), own.PlainFedProto(1, True), data="skewed"
    ),
    "fedproto, of PFLlib": Case(
        methods.FedProto(0.6, "clients", "all_epochs"), own.PlainFedProto(2, False), data="skewed", rounds=3
    ),
    "fedala": Case(
        methods.FedALA(rate=1.5, share=0.7, threshold=0.003), own.PlainFedALA(("head",), 0.7, 0.003), rounds=4
    ),
    "fedala, last block": Case(
        methods.FedALA("Conv_1+BatchNorm_1+head", 1.5, threshold=0.002),
        own.PlainFedALA(("convs.1", "norms.1", "head"), 0.8, 0.002), rounds=4,
    ),
    "fedamp, lost uploads": Case(
        methods.FedAMP(0.5, 0.1, 0.5), personal_dispatch.PlainFedAMP(0.5, 0.1, 0.5), rounds=4, upload_loss=0.3
    ),
    "fedpac, lost uploads": Case(
        methods.FedPAC(0.6, 1, 2), personal_dispatch.PlainFedPAC(0.6, "examples"), data="skewed",
        rounds=3, upload_loss=0.3,
    ),
    "fedpac, of PFLlib": Case(
        methods.FedPAC(0.6, 1, 2, "clients"), personal_dispatch.PlainFedPAC(0.6, "clients"), data="skewed"
    ),
    "fedfomo, lost uploads": Case(
        methods.FedFomo(2, 0.3, 0.7, 0.1), personal_dispatch.PlainFedFomo(2, 0.7, 0.1, 7), rounds=5, upload_loss=0.3
    ),
    "fedfomo, of PFLlib": Case(
        methods.FedFomo(3, 0.3, 0.0, variant="pfllib"), personal_dispatch.PlainFedFomo(3, 0, 0, 7, True),
        rounds=4,
    ),
    "dp_fedavg, lost uploads": Case(
        methods.DPFedAvg(0.3, 0.2, quantile=0.6, clip_rate=0.4, bit_noise=0.5),
        uploads.PlainDPFedAvg(0.3, 0.2, 0.6, 0.4, 0.5, 5, key=7), private="batch_norm", rounds=3, upload_loss=0.3,
    ),
    "fedper": Case(methods.FedPer(), algorithms.PlainFedPer()),
    "fedrep, newcomers": Case(methods.FedRep(2, 1, "mean"), algorithms.PlainFedRep()),
    "lg_fedavg": Case(methods.LGFedAvg(), algorithms.PlainLGFedAvg()),
    "fedbabu": Case(methods.FedBABU(), personal_heads.PlainFedBABU()),
    "fedrod": Case(
        methods.FedRoD(0.8), personal_heads.PlainFedRoD(alone=False), data="skewed",
        head=TwoHeads, make=personal_heads.TorchTwoHeads,
    ),
    "fedrod, of FL-bench": Case(
        methods.FedRoD(0.8, "fl_bench"), personal_heads.PlainFedRoD(alone=True), data="skewed",
        head=with_options(TwoHeads, copied=True), make=personal_heads.TorchTwoHeads,
    ),
    "feddbe": Case(
        methods.FedDBE(30.0, 0.4), personal_heads.PlainFedDBE(), head=Shifted, make=personal_heads.TorchShifted
    ),
    "apfl": Case(methods.APFL(0.3), personal.PlainAPFL(0.3, "paper")),
    "apfl, official, clipping, drop_last, schedule, frozen head": Case(
        methods.APFL(0.3, variant="official"), personal.PlainAPFL(0.3, "official"), training=CAREFUL
    ),
    "apfl, of PFLlib": Case(methods.APFL(0.3, variant="pfllib"), personal.PlainAPFL(0.3, "pfllib")),
    "per_fedavg": Case(methods.PerFedAvg(0.1), personal.PlainPerFedAvg(0.1)),
    "per_fedavg, hf": Case(methods.PerFedAvg(0.1, "hf", 0.01), personal.PlainPerFedAvg(0.1, 0.01)),
    "pfedme": Case(
        methods.PFedMe(2.0, 3, 0.1, 1.5, inner_decay=0.01), personal.PlainPFedMe(2.0, 3, 0.1, 1.5, 0.01, True)
    ),
    "pfedme, reset": Case(methods.PFedMe(2.0, 3, 0.1, reset=True), personal.PlainPFedMe(2.0, 3, 0.1, 1.0, 0.0, False)),
    "ffa_lora": on_adapters(methods.FFALoRA(), adapters.PlainFFALoRA()),
    "fedsa_lora": on_adapters(methods.FedSALoRA(), adapters.PlainFedSALoRA()),
    "rolora": on_adapters(methods.RoLoRA(), adapters.PlainRoLoRA(), weight_decay=0.0, rounds=3),
    "fedrot_lora": on_adapters(methods.FedRotLoRA(), adapters.PlainFedRotLoRA(1.0), rounds=3),
    "fedrot_lora, in part": on_adapters(methods.FedRotLoRA(0.7), adapters.PlainFedRotLoRA(0.7), rounds=3),
    "fedsvd": on_adapters(methods.FedSVD(), adapters.PlainFedSVD()),
    "fedex_lora": on_adapters(methods.FedExLoRA(), adapters.PlainFedExLoRA()),
    "flexlora": on_adapters(methods.FlexLoRA(), adapters.PlainFlexLoRA()),
    "flexlora, ranks": on_adapters(methods.FlexLoRA(adapters.RANKS), adapters.PlainFlexLoRA(adapters.RANKS)),
    "raflora": on_adapters(methods.RaFLoRA(adapters.RANKS), adapters.PlainRaFLoRA(adapters.RANKS)),
    "rb_lora": on_adapters(methods.RBLoRA(adapters.RANKS), adapters.PlainRBLoRA(adapters.RANKS)),
    "rb_lora, product": on_adapters(
        methods.RBLoRA(adapters.RANKS, "product"), adapters.PlainRBLoRA(adapters.RANKS, "product")
    ),
    "hetlora": on_adapters(methods.HetLoRA(adapters.RANKS), adapters.PlainHetLoRA(adapters.RANKS)),
    "hetlora, pruning": on_adapters(
        methods.HetLoRA(adapters.RANKS, self_pruning=True, strength=0.3, gamma=0.5),
        adapters.PlainPruningHetLoRA(adapters.RANKS, 0.3, 0.5), rounds=4,
    ),
    "flora": on_adapters(methods.FLoRA(adapters.RANKS), adapters.PlainFLoRA(adapters.RANKS)),
    "lora_fair": on_adapters(methods.LoRAFAIR(1e-4), adapters.PlainLoRAFAIR(1e-4), rounds=3),
    "lora_fair, cosine": on_adapters(
        methods.LoRAFAIR(1e-2, "cosine", steps=20, rate=1e-3), adapters.PlainCosineLoRAFAIR(1e-2, 20, 1e-3),
    ),
    "median, alie": Case(methods.Median(), uploads.PlainMedianUnderALIE(), {"alie": methods.ALIE(0.2, 1.5)}),
    "krum, label_flip": Case(
        methods.Krum(0, 2), uploads.PlainMultiKrumUnderFlips(), {"label_flip": methods.LabelFlip(0.4)}
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_rounds_equal_a_plain_pytorch_loop(request, name):
    """Three of the five clients in each round, with momentum, weight decay and short last batches."""
    case = CASES[name]
    assert_same_rounds(case, name.partition(",")[0], request.getfixturevalue(case.data))


def test_every_method_has_a_reference():
    """CCVR's, in NumPy, is in ``test_server_rules.py``; rounds of Muon, FedRPCA and GHOFL in ``test_local_steps.py``,
    ``test_low_rank.py`` and ``test_closed_forms.py``, of two views of an example beside PyTorch in
    ``test_self_supervised.py``; terms with random directions in ``test_losses_features.py``. The
    others change or measure what the reference trains, or compute another mean of the same uploads, by functions whose
    vectors are in ``test_robust.py``."""
    found = {each for name, case in CASES.items() for each in (name.partition(",")[0], *case.beside)}
    others = {"ccvr", "clip_update", "noisy_update", "recalibrate"}
    others |= {"bulyan", "centred_clipping", "fltrust", "geometric_median", "norm_bound", "trimmed_mean"}
    others |= {"corrected_muon", "aligned_muon", "fedrpca", "gh_ofl", "sigreg", "visreg"}
    others |= {"byol", "fedema", "fedu2", "ssd"}
    others |= {"backdoor", "gaussian_attack", "ipm", "min_max", "sign_flip"}
    assert discovery.classes(methods, Method).keys() - found == others


def test_cohorts_of_sharp_methods(float64, federation):
    """Some clients come back at once, one after a round in which it was absent."""
    sizes, key = federation.ownership.sizes, jax.random.key(SHARP["key"])
    first, second, third = (set(cohort_of(key, t, sizes, COHORT_SIZE).tolist()) for t in range(3))
    assert first & second and (first & third) - second


def test_float32_rounds_of_all_clients_equal_a_plain_pytorch_loop(federation):
    """One round in single precision: FedDecorr divides by the deviation of features, so that rounding errors of the
    first round grow in the second."""
    model = Model(nn.SmallCNN(4, channels=(5, 7)), federation.input_shape)
    variables = model.init(jax.random.key(0))  # no feature is nearly dead
    options = dict(rounds=1, key=jax.random.key(7), client_map=engine.Chunked(2))
    result = simulate(federation, model, FedAvg(TRAINING, DECORR), variables=variables, **options)
    reference = Rounds(federation, terms.PlainFedDecorr(), variables)
    expected = reference.run(jax.random.split(options["key"])[1], 1, cohort_size=5).server.dump()
    assert_close(result.variables, expected, 1e-5)
    assert_trained(expected, variables)


def assert_trained(after, before):
    """Every leaf was, so agreement means something."""
    leaves = zip(*map(jax.tree.leaves, (after, jax.device_get(before))), strict=True)
    assert min(np.abs(a - b).max() for a, b in leaves) > 1e-3


def test_rounds_on_sentences_equal_a_plain_pytorch_loop(float64):
    """An LSTM with FedDecorr, on tokens that have a target; the last sentences of a batch and of a client are few."""
    federation = sentences()
    network = nn.StackOverflowLSTM(federation.num_classes, embedding=4, hidden=5)
    model = Model(network, federation.input_shape, task=next_word(federation.num_classes - 4), input_dtype="int32")
    variables, training = model.init(jax.random.key(0)), TRAINING.replace(learning_rate=0.2)
    options = dict(rounds=2, key=jax.random.key(7), client_map=engine.Vectorized())
    result = simulate(federation, model, FedAvg(training, DECORR), variables=variables, **options)
    reference = TokenRounds(federation, FedDecorrOnTokens(), variables, training, TorchStackOverflow)
    expected = reference.run(jax.random.split(options["key"])[1], 2, cohort_size=5).server.dump()
    assert_close(result.variables, expected, 1e-10)
    assert_trained(expected, variables)
