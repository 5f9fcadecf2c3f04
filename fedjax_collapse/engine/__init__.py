"""The layout of clients on devices, and the compiled round."""

from fedjax_collapse.engine import memory as memory
from fedjax_collapse.engine import together as together
from fedjax_collapse.engine.client_maps import (
    Chunked as Chunked,
)
from fedjax_collapse.engine.client_maps import (
    ClientMap as ClientMap,
)
from fedjax_collapse.engine.client_maps import (
    Loop as Loop,
)
from fedjax_collapse.engine.client_maps import (
    Outcome as Outcome,
)
from fedjax_collapse.engine.client_maps import (
    Sharded as Sharded,
)
from fedjax_collapse.engine.client_maps import (
    Vectorized as Vectorized,
)
from fedjax_collapse.engine.client_maps import (
    check_at_once as check_at_once,
)
from fedjax_collapse.engine.cohort import Assignment as Assignment
from fedjax_collapse.engine.cohort import Watched as Watched
from fedjax_collapse.engine.cohort import home_order as home_order
from fedjax_collapse.engine.layout import (
    Layout as Layout,
)
from fedjax_collapse.engine.layout import (
    RoundSpec as RoundSpec,
)
from fedjax_collapse.engine.layout import (
    batch_parts as batch_parts,
)
from fedjax_collapse.engine.layout import (
    check_watch as check_watch,
)
from fedjax_collapse.engine.layout import (
    clients_at_once as clients_at_once,
)
from fedjax_collapse.engine.participation import Clock as Clock
from fedjax_collapse.engine.participation import Participation as Participation
from fedjax_collapse.engine.placement import (
    available_devices as available_devices,
)
from fedjax_collapse.engine.placement import (
    num_busy as num_busy,
)
from fedjax_collapse.engine.placement import (
    on_one_device as on_one_device,
)
from fedjax_collapse.engine.placement import (
    own_devices as own_devices,
)
from fedjax_collapse.engine.placement import (
    to_host as to_host,
)
from fedjax_collapse.engine.program import STORAGES as STORAGES
from fedjax_collapse.engine.program import Program as Program
from fedjax_collapse.engine.rounds import (
    Advance as Advance,
)
from fedjax_collapse.engine.rounds import (
    RoundRecord as RoundRecord,
)
from fedjax_collapse.engine.rounds import (
    State as State,
)
from fedjax_collapse.engine.rounds import (
    by_identity as by_identity,
)
from fedjax_collapse.engine.rounds import (
    client_shapes as client_shapes,
)
from fedjax_collapse.engine.rounds import (
    compile_rounds as compile_rounds,
)
from fedjax_collapse.engine.rounds import (
    distribute as distribute,
)
from fedjax_collapse.engine.rounds import (
    init as init,
)
from fedjax_collapse.engine.rounds import (
    lower as lower,
)
from fedjax_collapse.engine.rounds import (
    run_rounds as run_rounds,
)
from fedjax_collapse.engine.rounds import (
    trace as trace,
)
from fedjax_collapse.engine.rounds import (
    with_first_reports as with_first_reports,
)
from fedjax_collapse.engine.rounds import (
    without_padding as without_padding,
)
from fedjax_collapse.engine.samplers import (
    Available as Available,
)
from fedjax_collapse.engine.samplers import (
    BySize as BySize,
)
from fedjax_collapse.engine.samplers import (
    HostUniform as HostUniform,
)
from fedjax_collapse.engine.samplers import (
    Poisson as Poisson,
)
from fedjax_collapse.engine.samplers import (
    Uniform as Uniform,
)
from fedjax_collapse.engine.skipping import KEEP_ALL as KEEP_ALL
from fedjax_collapse.engine.skipping import SkipDiverged as SkipDiverged
