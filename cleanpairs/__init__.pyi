"""The public names and their homes, for type checkers, and for the package itself, which imports them lazily."""

from cleanpairs.audit import draw_sample as draw_sample
from cleanpairs.audit import evaluate_audit as evaluate_audit
from cleanpairs.audit import expected_quality as expected_quality
from cleanpairs.audit import read_labels as read_labels
from cleanpairs.audit import write_labels as write_labels
from cleanpairs.commands.ray_data import ScorePairs as ScorePairs
from cleanpairs.core.errors import CleanpairsError as CleanpairsError
from cleanpairs.data import Pairs as Pairs
from cleanpairs.data import load_pairs as load_pairs
from cleanpairs.data.filters import filter_reasons as filter_reasons
from cleanpairs.data.noise import apply_noise as apply_noise
from cleanpairs.data.noise import corrupt as corrupt
from cleanpairs.data.noise import inject_noise as inject_noise
from cleanpairs.datasets import clipart_path as clipart_path
from cleanpairs.datasets import load_clipart as load_clipart
from cleanpairs.estimators import FrozenScorer as FrozenScorer
from cleanpairs.estimators import PairCleaner as PairCleaner
from cleanpairs.estimators import PairScorer as PairScorer
from cleanpairs.export import diff_export as diff_export
from cleanpairs.export import export_pairs as export_pairs
from cleanpairs.export import restore_export as restore_export
from cleanpairs.features import image_matrix as image_matrix
from cleanpairs.methods.auto import Auto as Auto
from cleanpairs.methods.bicro import BiCro as BiCro
from cleanpairs.methods.clip_score import ClipScore as ClipScore
from cleanpairs.methods.crcl import CRCL as CRCL
from cleanpairs.methods.cream import CREAM as CREAM
from cleanpairs.methods.decl import DECL as DECL
from cleanpairs.methods.gsc import GSC as GSC
from cleanpairs.methods.in2r import IN2R as IN2R
from cleanpairs.methods.l2rm import L2RM as L2RM
from cleanpairs.methods.lemon import LEMoN as LEMoN
from cleanpairs.methods.mscn import MSCN as MSCN
from cleanpairs.methods.ncr import NCR as NCR
from cleanpairs.methods.npc import NPC as NPC
from cleanpairs.methods.pc2 import PC2 as PC2
from cleanpairs.methods.plain import InfoNCE as InfoNCE
from cleanpairs.methods.plain import Triplet as Triplet
from cleanpairs.methods.rcl import RCL as RCL
from cleanpairs.methods.repair import REPAIR as REPAIR
from cleanpairs.repair.plan import RepairPlan as RepairPlan
from cleanpairs.report import write_report as write_report
from cleanpairs.scoring.evaluate import detection as detection

__version__: str
