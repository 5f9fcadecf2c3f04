"""Networks, one a file: ordinary Linen modules called as ``module(images, mask, train)`` and returning ``Outputs``."""

from fedjax_collapse.nn.alexnet import AlexNet as AlexNet
from fedjax_collapse.nn.efficientnet_b0 import EfficientNetB0 as EfficientNetB0
from fedjax_collapse.nn.feduv_cnn import FedUVCNN as FedUVCNN
from fedjax_collapse.nn.mlp import MLP as MLP
from fedjax_collapse.nn.mobilenet_v2 import MobileNetV2 as MobileNetV2
from fedjax_collapse.nn.moon_cnn import MOONCNN as MOONCNN
from fedjax_collapse.nn.resnet18 import ResNet18 as ResNet18
from fedjax_collapse.nn.resnet20 import ResNet20 as ResNet20
from fedjax_collapse.nn.resnet32 import ResNet32 as ResNet32
from fedjax_collapse.nn.resnet50 import ResNet50 as ResNet50
from fedjax_collapse.nn.small_cnn import SmallCNN as SmallCNN
from fedjax_collapse.nn.wide_resnet import WideResNet as WideResNet
