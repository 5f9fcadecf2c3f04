"""Types of pandas and matplotlib for annotations; both take long to import, so only type checkers do that here."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
    from pandas import DataFrame as DataFrame
else:
    Axes = DataFrame = Figure = Any
