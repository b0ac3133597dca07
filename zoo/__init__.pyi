from zoo.backbone import Backbone as Backbone
from zoo.blocks import Bidirectional as Bidirectional
from zoo.contract import SequenceMixer as SequenceMixer
from zoo.loading.packing import run_left_padded as run_left_padded
from zoo.loading.packing import run_packed as run_packed
from zoo.loading.saved import load as load
from zoo.loading.saved import load_mixer as load_mixer
from zoo.loading.saved import save as save
from zoo.loading.transformers import load_transformers as load_transformers
from zoo.registry import create_layers as create_layers
from zoo.registry import create_mixer as create_mixer
from zoo.registry import list_mixers as list_mixers
from zoo.registry import register as register
from zoo.state import State as State
from zoo.state import detach_state as detach_state
from zoo.state import map_state as map_state
from zoo.state import move_state as move_state
from zoo.state import reorder_state as reorder_state
from zoo.state import state_nbytes as state_nbytes

__version__: str
