"""Networks, one per file: Linen modules that are called as ``module(images, mask, train)`` and return ``Outputs``."""

from fedjax_collapse.nn.networks.alexnet import AlexNet as AlexNet
from fedjax_collapse.nn.networks.efficientnet_b0 import EfficientNetB0 as EfficientNetB0
from fedjax_collapse.nn.networks.feduv_cnn import FedUVCNN as FedUVCNN
from fedjax_collapse.nn.networks.mlp import MLP as MLP
from fedjax_collapse.nn.networks.mobilenet_v2 import MobileNetV2 as MobileNetV2
from fedjax_collapse.nn.networks.moon_cnn import MOONCNN as MOONCNN
from fedjax_collapse.nn.networks.pfl_transformer import PflTransformer as PflTransformer
from fedjax_collapse.nn.networks.pfllib_cnn import PFLlibCNN as PFLlibCNN
from fedjax_collapse.nn.networks.resnet18 import ResNet18 as ResNet18
from fedjax_collapse.nn.networks.resnet20 import ResNet20 as ResNet20
from fedjax_collapse.nn.networks.resnet32 import ResNet32 as ResNet32
from fedjax_collapse.nn.networks.resnet50 import ResNet50 as ResNet50
from fedjax_collapse.nn.networks.shakespeare_lstm import ShakespeareLSTM as ShakespeareLSTM
from fedjax_collapse.nn.networks.small_cnn import SmallCNN as SmallCNN
from fedjax_collapse.nn.networks.stackoverflow_lstm import StackOverflowLSTM as StackOverflowLSTM
from fedjax_collapse.nn.networks.vit import ViT as ViT
from fedjax_collapse.nn.networks.wide_resnet import WideResNet as WideResNet
