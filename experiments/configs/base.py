"""The config from which a config file starts; it changes values, and a key that is not here is an error.

``docs/configs.md`` lists the keys, which are those of ``fedjax_collapse/config/keys.py``.
"""

from fedjax_collapse.config.keys import StudyConfig as StudyConfig
from fedjax_collapse.config.keys import get_config as get_config
