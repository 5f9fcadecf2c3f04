"""How clients are laid onto hardware, and the compiled round."""

from fedjax_collapse.engine import memory as memory
from fedjax_collapse.engine import together as together
from fedjax_collapse.engine.client_maps import Chunked as Chunked
from fedjax_collapse.engine.client_maps import ClientMap as ClientMap
from fedjax_collapse.engine.client_maps import Loop as Loop
from fedjax_collapse.engine.client_maps import Sharded as Sharded
from fedjax_collapse.engine.client_maps import Vectorized as Vectorized
from fedjax_collapse.engine.layout import Layout as Layout
from fedjax_collapse.engine.layout import choose_batch_parts as choose_batch_parts
from fedjax_collapse.engine.program import STORAGES as STORAGES
from fedjax_collapse.engine.program import Program as Program
from fedjax_collapse.engine.rounds import RoundRecord as RoundRecord
from fedjax_collapse.engine.rounds import State as State
from fedjax_collapse.engine.rounds import compile_rounds as compile_rounds
from fedjax_collapse.engine.rounds import init as init
from fedjax_collapse.engine.rounds import place as place
from fedjax_collapse.engine.rounds import run_rounds as run_rounds
from fedjax_collapse.engine.rounds import start as start
from fedjax_collapse.engine.rounds import trace as trace
from fedjax_collapse.engine.rounds import without_padding as without_padding
