"""Published methods, one per file, in a folder for each family of ideas. ``FedAvg`` takes any number of them.

``base.py`` defines their interface. A config finds a method by the name of its file; this list is for scripts.
"""

from fedjax_collapse.methods.adapters.fedex_lora import FedExLoRA as FedExLoRA
from fedjax_collapse.methods.adapters.fedrot_lora import FedRotLoRA as FedRotLoRA
from fedjax_collapse.methods.adapters.fedsa_lora import FedSALoRA as FedSALoRA
from fedjax_collapse.methods.adapters.fedsvd import FedSVD as FedSVD
from fedjax_collapse.methods.adapters.ffa_lora import FFALoRA as FFALoRA
from fedjax_collapse.methods.adapters.flexlora import FlexLoRA as FlexLoRA
from fedjax_collapse.methods.adapters.flora import FLoRA as FLoRA
from fedjax_collapse.methods.adapters.hetlora import HetLoRA as HetLoRA
from fedjax_collapse.methods.adapters.lora_fair import LoRAFAIR as LoRAFAIR
from fedjax_collapse.methods.adapters.raflora import RaFLoRA as RaFLoRA
from fedjax_collapse.methods.adapters.rb_lora import RBLoRA as RBLoRA
from fedjax_collapse.methods.adapters.rolora import RoLoRA as RoLoRA
from fedjax_collapse.methods.base import (
    ClientView as ClientView,
)
from fedjax_collapse.methods.base import (
    CohortView as CohortView,
)
from fedjax_collapse.methods.base import (
    DispatchView as DispatchView,
)
from fedjax_collapse.methods.base import (
    FinishView as FinishView,
)
from fedjax_collapse.methods.base import (
    GradientView as GradientView,
)
from fedjax_collapse.methods.base import (
    LocalView as LocalView,
)
from fedjax_collapse.methods.base import (
    Method as Method,
)
from fedjax_collapse.methods.base import (
    Noise as Noise,
)
from fedjax_collapse.methods.base import (
    NoiseView as NoiseView,
)
from fedjax_collapse.methods.base import (
    PredictView as PredictView,
)
from fedjax_collapse.methods.base import (
    Regularizer as Regularizer,
)
from fedjax_collapse.methods.base import (
    RoundView as RoundView,
)
from fedjax_collapse.methods.base import (
    Term as Term,
)
from fedjax_collapse.methods.classifier.balanced_softmax import BalancedSoftmax as BalancedSoftmax
from fedjax_collapse.methods.classifier.ccvr import CCVR as CCVR
from fedjax_collapse.methods.classifier.feddr_plus import FedDrPlus as FedDrPlus
from fedjax_collapse.methods.classifier.fedetf import FedETF as FedETF
from fedjax_collapse.methods.classifier.fedgela import FedGELA as FedGELA
from fedjax_collapse.methods.classifier.fedlc import FedLC as FedLC
from fedjax_collapse.methods.classifier.fedrs import FedRS as FedRS
from fedjax_collapse.methods.classifier.fedvls import FedVLS as FedVLS
from fedjax_collapse.methods.collapse.decov import DeCov as DeCov
from fedjax_collapse.methods.collapse.feddecorr import FedDecorr as FedDecorr
from fedjax_collapse.methods.collapse.fedmr import FedMR as FedMR
from fedjax_collapse.methods.collapse.fedrcl import FedRCL as FedRCL
from fedjax_collapse.methods.collapse.feduv import FedUV as FedUV
from fedjax_collapse.methods.collapse.singular_value_variance import SingularValueVariance as SingularValueVariance
from fedjax_collapse.methods.collapse.structured_decov import StructuredDeCov as StructuredDeCov
from fedjax_collapse.methods.collapse.vicreg import VICReg as VICReg
from fedjax_collapse.methods.drift.fedasam import FedASAM as FedASAM
from fedjax_collapse.methods.drift.fedcm import FedCM as FedCM
from fedjax_collapse.methods.drift.feddc import FedDC as FedDC
from fedjax_collapse.methods.drift.feddyn import FedDyn as FedDyn
from fedjax_collapse.methods.drift.fedlesam import FedLESAM as FedLESAM
from fedjax_collapse.methods.drift.fednova import FedNova as FedNova
from fedjax_collapse.methods.drift.fedntd import FedNTD as FedNTD
from fedjax_collapse.methods.drift.fedproc import FedProc as FedProc
from fedjax_collapse.methods.drift.fedprox import FedProx as FedProx
from fedjax_collapse.methods.drift.fedsam import FedSAM as FedSAM
from fedjax_collapse.methods.drift.moon import MOON as MOON
from fedjax_collapse.methods.drift.scaffold import Scaffold as Scaffold
from fedjax_collapse.methods.one_shot.afl import AFL as AFL
from fedjax_collapse.methods.one_shot.fed3r import Fed3R as Fed3R
from fedjax_collapse.methods.one_shot.fedcgs import FedCGS as FedCGS
from fedjax_collapse.methods.personal.apfl import APFL as APFL
from fedjax_collapse.methods.personal.ditto import Ditto as Ditto
from fedjax_collapse.methods.personal.fedala import FedALA as FedALA
from fedjax_collapse.methods.personal.fedamp import FedAMP as FedAMP
from fedjax_collapse.methods.personal.fedbabu import FedBABU as FedBABU
from fedjax_collapse.methods.personal.feddbe import FedDBE as FedDBE
from fedjax_collapse.methods.personal.fedfomo import FedFomo as FedFomo
from fedjax_collapse.methods.personal.fedpac import FedPAC as FedPAC
from fedjax_collapse.methods.personal.fedper import FedPer as FedPer
from fedjax_collapse.methods.personal.fedproto import FedProto as FedProto
from fedjax_collapse.methods.personal.fedrep import FedRep as FedRep
from fedjax_collapse.methods.personal.fedrod import FedRoD as FedRoD
from fedjax_collapse.methods.personal.lg_fedavg import LGFedAvg as LGFedAvg
from fedjax_collapse.methods.personal.per_fedavg import PerFedAvg as PerFedAvg
from fedjax_collapse.methods.personal.pfedme import PFedMe as PFedMe
from fedjax_collapse.methods.robust.alie import ALIE as ALIE
from fedjax_collapse.methods.robust.backdoor import Backdoor as Backdoor
from fedjax_collapse.methods.robust.bulyan import Bulyan as Bulyan
from fedjax_collapse.methods.robust.centred_clipping import CentredClipping as CentredClipping
from fedjax_collapse.methods.robust.fltrust import FLTrust as FLTrust
from fedjax_collapse.methods.robust.gaussian_attack import GaussianAttack as GaussianAttack
from fedjax_collapse.methods.robust.geometric_median import GeometricMedian as GeometricMedian
from fedjax_collapse.methods.robust.ipm import IPM as IPM
from fedjax_collapse.methods.robust.krum import Krum as Krum
from fedjax_collapse.methods.robust.label_flip import LabelFlip as LabelFlip
from fedjax_collapse.methods.robust.median import Median as Median
from fedjax_collapse.methods.robust.min_max import MinMax as MinMax
from fedjax_collapse.methods.robust.norm_bound import NormBound as NormBound
from fedjax_collapse.methods.robust.sign_flip import SignFlip as SignFlip
from fedjax_collapse.methods.robust.trimmed_mean import TrimmedMean as TrimmedMean
from fedjax_collapse.methods.server.clip_update import ClipUpdate as ClipUpdate
from fedjax_collapse.methods.server.dp_fedavg import DPFedAvg as DPFedAvg
from fedjax_collapse.methods.server.fedexp import FedExP as FedExP
from fedjax_collapse.methods.server.noisy_update import NoisyUpdate as NoisyUpdate
from fedjax_collapse.methods.server.recalibrate import Recalibrate as Recalibrate
from fedjax_collapse.methods.server.top_k import TopK as TopK
from fedjax_collapse.schema.options import option as option
