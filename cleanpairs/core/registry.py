"""Name -> class, by strings only: a module is imported when its class is first used."""

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cleanpairs.core.errors import ConfigError


def nearest(name: str, known: list[str]) -> str:
    """``"; did you mean 'x'?"`` for the known name nearest to ``name`` in any case, or an empty string."""
    folded = {one.casefold(): one for one in known}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.65)
    return f"; did you mean {folded[close[0]]!r}?" if close else ""


def load_target(target: str) -> Any:
    """The object that ``module:name`` names."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


@dataclass(frozen=True)
class Entry:
    """One registered name: where its class is (``module:attribute``), one line about it, its source, what it needs."""

    name: str
    target: str
    summary: str
    source: str = ""
    needs: Mapping[str, str] = field(default_factory=dict)  # parameter without which it does not run -> what that is


class Registry(dict[str, Entry]):
    """Name -> an :class:`Entry`, whose target is in ``package``. ConfigError, with the nearest name, for an unknown."""

    def __init__(self, kind: str, entries: Mapping[str, tuple[Any, ...]], package: str = "") -> None:
        self.kind, prefix = kind, f"{package}." if package else ""
        super().__init__({name: Entry(name, prefix + target, *facts) for name, (target, *facts) in entries.items()})

    def __missing__(self, name: str) -> Entry:
        raise ConfigError(f"unknown {self.kind} {name!r}{nearest(str(name), list(self))} (known: {', '.join(self)})")

    def load(self, name: str) -> Any:
        """The class registered under ``name``."""
        return load_target(self[name].target)


# A row of these tables: name, class (module:attribute), what it is, source, what it needs.
METHODS = Registry("method", {
    "auto": ("auto:Auto",
        "neighbours' agreement gives noise rate and weights to two networks; needs no settings", "cleanpairs"),
    "crcl": ("crcl:CRCL", "active complementary loss, self-refining momentum labels", "CRCL, NeurIPS 2023"),
    "repair": ("repair:REPAIR",
        "rank correlation with a memory of clean pairs, noisy pairs half-replaced; two networks", "REPAIR, 2024"),
    "pc2": ("pc2:PC2",
        "pseudo-classes lend captions to noisy images, oscillation steadies labels; two networks", "PC2, ACM MM 2024"),
    "l2rm": ("l2rm:L2RM",
        "mismatched batches rematched by partial optimal transport with a learned cost", "L2RM, CVPR 2024"),
    "ncr": ("ncr:NCR", "Gaussian co-dividing, soft margins from rectified labels; two networks", "NCR, NeurIPS 2021"),
    "decl": ("decl:DECL", "evidence and its uncertainty weigh the pairs", "DECL, ACM MM 2022"),
    "bicro": ("bicro:BiCro",
        "similar images should have similar texts: labels from clean anchors; two networks", "BiCro, CVPR 2023"),
    "gsc": ("gsc:GSC",
        "labels from neighbours that agree between the modalities; one or two networks", "GSC, CVPR 2024"),
    "npc": ("npc:NPC",
        "a step on a pair is tried on a copy: what harms trusted neighbours counts less", "NPC, AAAI 2024"),
    "cream": ("cream:CREAM",
        "clean, hard and noisy pairs by two networks; labels spread over similar pairs", "CREAM, TIP 2024"),
    "in2r": ("in2r:IN2R",
        "noisy pairs learn from the partners of their clean neighbours, mixed by attention; two networks",
        "IN2R, ICML 2026"),
    "rcl": ("rcl:RCL", "complementary contrastive learning: wrong answers are pushed down only", "RCL, TPAMI 2023"),
    "mscn": ("mscn:MSCN",
        "a network that learns on clean pairs how much a noisy one counts; two networks", "MSCN, CVPR 2023",
        {"meta": "a small clean set of pairs (--set method.meta=DATA)"}),
    "infonce": ("plain:InfoNCE", "plain contrastive training, no resistance: the baseline", "CPC, 2018; CLIP, 2021"),
    "triplet": ("plain:Triplet", "plain triplet loss with hardest negatives, no resistance", "VSE++, BMVC 2018"),
    "clip-score": ("clip_score:ClipScore",
        "normalised cosine of a pretrained CLIP or SigLIP, threshold by null pairs: nothing trained",
        "CLIPScore, EMNLP 2021; DataComp, 2023",
        {"model": "a CLIP or SigLIP model (--set method.model=NAME), or data with vectors of both sides"}),
    "lemon": ("lemon:LEMoN",
        "distances to the neighbours of image and caption in a frozen space: nothing trained", "LEMoN, ICML 2025",
        {"model": "a CLIP or SigLIP model (--set method.model=NAME), or data with vectors of both sides"}),
}, "cleanpairs.methods")  # fmt: skip

BACKBONES = Registry("backbone", {
    "vse_inf": ("backbone:VSEInf", "regions and words pooled by GPO (VSE infinity, 2021)"),
    "saf": ("sgraf:SAF", "words attend over regions, similarity attention filtration (2021)"),
    "sgr": ("sgraf:SGR", "words attend over regions, similarity graph reasoning (2021)"),
    "sgraf": ("sgraf:SGRAF", "the mean of SAF's and SGR's similarities (2021)"),
    "mlp": ("mlp:MLP", "mean region and bag of words through an MLP each: the fastest"),
}, "cleanpairs.encoders")  # fmt: skip

HEADS = Registry("model", {  # models on, or of, pretrained networks: chosen by the encoders, not by name
    "joint_space": ("joint_head:JointSpace", "vectors of one space, as they are"),
    "joint_head": ("joint_head:JointHead", "a residual MLP on vectors of one space"),
    "vector_towers": ("joint_head:VectorTowers", "vectors of two spaces, brought into one"),
    "linear": ("linear:Linear", "ridge regressions between frozen spaces, in closed form"),
    "tuned_clip": ("tuned:TunedCLIP", "CLIP or SigLIP: LoRA, last blocks, or all of it"),
}, "cleanpairs.encoders")  # fmt: skip

# Readers try an input in this order, unless it is *.parquet. Parquet is last, as it takes any file.
READERS = Registry("reader", {
    "npy": ("formats.vectors:VectorFilesReader", "arrays of vectors: .npy files, (n, D)"),
    "datasets": ("formats.datasets_directory:DatasetsReader",
        "`datasets`: a directory of save_to_disk, an .arrow file, hf://owner/name"),
    "lance": ("formats.lance_dataset:LanceReader", "a directory of Lance"),
    "webdataset": ("formats.webdataset:WebDatasetReader",
        "WebDataset tars, img2dataset's too: a tar, a directory, braces, a glob"),
    "clip-retrieval": ("formats.vectors:ClipRetrievalReader",
        "embedding folder of clip-retrieval: img_emb/*.npy, text_emb/*.npy, metadata/*.parquet"),
    "coco": ("formats.folder:CaptionJsonReader", "COCO's captions_*.json, Karpathy's dataset_*.json"),
    "precomp": ("formats.vectors:PrecompReader", "research layout: {split}_ims.npy and {split}_caps.txt"),
    "images": ("formats.image_folder:ImageFolderReader",
        "a folder of images with a .txt, .caption or .json each; the files format of img2dataset"),
    "folder": ("formats.folder:FolderReader",
        "image files named by a CSV, TSV, JSON Lines or JSON list: the file, or its folder"),
    "parquet": ("table_reader:ParquetReader", "Parquet: a file, a glob or a directory"),
}, "cleanpairs.data")  # fmt: skip

ENGINES = Registry("engine", {
    "local": ("local:LocalEngine", "this machine: one process, or a pool of them"),
    "ray": ("ray:RayEngine", "a Ray cluster, or a Ray started here: a pool of actors"),
}, "cleanpairs.engine")  # fmt: skip
