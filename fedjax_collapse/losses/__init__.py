"""Loss functions on the arrays of one batch, independent of clients, rounds and servers."""

from fedjax_collapse.losses.calibrated import (
    balanced_cross_entropy as balanced_cross_entropy,
)
from fedjax_collapse.losses.calibrated import (
    calibrated_cross_entropy as calibrated_cross_entropy,
)
from fedjax_collapse.losses.calibrated import (
    restricted_cross_entropy as restricted_cross_entropy,
)
from fedjax_collapse.losses.classwise import intra_class_correlation as intra_class_correlation
from fedjax_collapse.losses.contrastive import model_contrastive as model_contrastive
from fedjax_collapse.losses.correlation import correlation_frobenius as correlation_frobenius
from fedjax_collapse.losses.covariance import (
    decov as decov,
)
from fedjax_collapse.losses.covariance import (
    structured_decov as structured_decov,
)
from fedjax_collapse.losses.covariance import (
    vicreg_covariance as vicreg_covariance,
)
from fedjax_collapse.losses.covariance import (
    vicreg_variance as vicreg_variance,
)
from fedjax_collapse.losses.distillation import (
    logit_suppression as logit_suppression,
)
from fedjax_collapse.losses.distillation import (
    not_true_distillation as not_true_distillation,
)
from fedjax_collapse.losses.distillation import (
    vacant_distillation as vacant_distillation,
)
from fedjax_collapse.losses.prototypes import (
    class_sums as class_sums,
)
from fedjax_collapse.losses.prototypes import (
    prototype_cross_entropy as prototype_cross_entropy,
)
from fedjax_collapse.losses.prototypes import (
    prototype_distance as prototype_distance,
)
from fedjax_collapse.losses.prototypes import (
    prototype_margin as prototype_margin,
)
from fedjax_collapse.losses.proximal import proximal_distance as proximal_distance
from fedjax_collapse.losses.relaxed_contrastive import (
    excess_similarity as excess_similarity,
)
from fedjax_collapse.losses.relaxed_contrastive import (
    hardest_contrast as hardest_contrast,
)
from fedjax_collapse.losses.singular import singular_value_variance as singular_value_variance
from fedjax_collapse.losses.task_loss import (
    binary_cross_entropy as binary_cross_entropy,
)
from fedjax_collapse.losses.task_loss import (
    cross_entropy as cross_entropy,
)
from fedjax_collapse.losses.task_loss import (
    cross_entropy_of_many as cross_entropy_of_many,
)
from fedjax_collapse.losses.task_loss import (
    masked_mean as masked_mean,
)
from fedjax_collapse.losses.task_loss import (
    summed_binary_cross_entropy as summed_binary_cross_entropy,
)
from fedjax_collapse.losses.uniformity import (
    classifier_variance as classifier_variance,
)
from fedjax_collapse.losses.uniformity import (
    hyperspherical_uniformity as hyperspherical_uniformity,
)
