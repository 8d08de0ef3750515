"""Any module as nodes: its forward recorded, cut into parts, and each part copied out with values of its own."""

from petra_graph_modules.cutting.cannot_cut import CannotCut as CannotCut
from petra_graph_modules.cutting.cut_network import CutNetwork as CutNetwork
from petra_graph_modules.cutting.cut_network import HeldNetwork as HeldNetwork
from petra_graph_modules.cutting.cut_network import copy_part as copy_part
from petra_graph_modules.cutting.cut_network import cut_network as cut_network
from petra_graph_modules.cutting.parts import Part as Part
from petra_graph_modules.cutting.parts import parts_of as parts_of
from petra_graph_modules.cutting.recorded_forward import Input as Input
from petra_graph_modules.cutting.recorded_forward import RecordedForward as RecordedForward
from petra_graph_modules.cutting.returned_structure import NoTensors as NoTensors
from petra_graph_modules.cutting.returned_structure import put_together as put_together
from petra_graph_modules.cutting.returned_structure import taken_apart as taken_apart
from petra_graph_modules.cutting.units import CONTAINERS as CONTAINERS
from petra_graph_modules.cutting.units import weighs as weighs
