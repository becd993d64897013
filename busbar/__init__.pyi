from bench.api.calls import verify as verify
from bench.api.comparing import ComparedRow as ComparedRow
from bench.api.comparing import compare as compare
from bench.api.keywords import Algorithm as Algorithm
from bench.api.keywords import Collective as Collective
from bench.api.keywords import DataTypes as DataTypes
from bench.api.keywords import Keywords as Keywords
from bench.api.keywords import Sizes as Sizes
from bench.api.keywords import StepKeywords as StepKeywords
from bench.api.machine import MachineMap as MachineMap
from bench.api.machine import Picked as Picked
from bench.api.machine import pick as pick
from bench.api.machine import topology as topology
from bench.api.measured import MeasuredRows as MeasuredRows
from bench.api.measured import load as load
from bench.api.predicting import PredictedTime as PredictedTime
from bench.api.predicting import SimulatedTime as SimulatedTime
from bench.api.predicting import predict as predict
from bench.api.predicting import simulate as simulate
from bench.api.results import BestAlgorithm as BestAlgorithm
from bench.api.results import ResultTable as ResultTable
from bench.api.running import run as run
from bench.api.running import step as step
from busbar.errors import BusbarError as BusbarError
from collectives.schedule.schedule import Schedule as Schedule
from reports.records.measurement import Measurement as Measurement

__version__: str
