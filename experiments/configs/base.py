"""The config from which the configs of this folder start, which is the library's."""

from fedjax_collapse.config.base import StudyConfig as StudyConfig
from fedjax_collapse.config.base import get_config as get_config
