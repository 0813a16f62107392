"""Name -> class, by strings only: nothing is imported before it is asked for."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cleanpairs.core.errors import ConfigError


def nearest(name: str, known: list[str]) -> str:
    """``"; did you mean 'x'?"`` for the known name nearest to ``name``, or an empty string."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.65)
    return f"; did you mean {close[0]!r}?" if close else ""


@dataclass(frozen=True)
class Entry:
    """One registered name: where its class is (``module:attribute``), one line about it, its source, what it needs."""

    name: str
    target: str
    summary: str
    source: str = ""
    needs: Mapping[str, str] = field(default_factory=dict)  # parameter without which it does not run -> what that is

    def load(self) -> Any:
        """Import the module and return the registered object."""
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(module), attribute)


class Registry:
    """An ordered table of names of one kind.

    Raises ConfigError: from :meth:`entry` and :meth:`load`, for an unknown name; it suggests the nearest one.
    """

    def __init__(self, kind: str, entries: Mapping[str, tuple[Any, ...]]) -> None:
        self.kind = kind
        self._entries = {name: Entry(name, *value) for name, value in entries.items()}

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def names(self) -> list[str]:
        """All registered names, in order of registration."""
        return list(self._entries)

    def entry(self, name: str) -> Entry:
        """The entry of ``name``."""
        if name not in self._entries:
            known = ", ".join(self._entries)
            raise ConfigError(f"unknown {self.kind} {name!r}{nearest(name, list(self._entries))} (known: {known})")
        return self._entries[name]

    def load(self, name: str) -> Any:
        """The class registered under ``name``."""
        return self.entry(name).load()


METHODS = Registry(
    "method",
    {
        "auto": (
            "cleanpairs.methods.auto:Auto",
            "neighbours' agreement gives noise rate and weights before training; two networks; no settings",
            "cleanpairs",
        ),
        "crcl": (
            "cleanpairs.methods.crcl:CRCL",
            "active complementary loss, self-refining momentum labels",
            "CRCL, NeurIPS 2023",
        ),
        "repair": (
            "cleanpairs.methods.repair:REPAIR",
            "rank correlation with a memory of clean pairs, noisy pairs half-replaced; two networks",
            "REPAIR, 2024",
        ),
        "pc2": (
            "cleanpairs.methods.pc2:PC2",
            "pseudo-classes lend captions to noisy images, oscillation steadies labels; two networks",
            "PC2, ACM MM 2024",
        ),
        "l2rm": (
            "cleanpairs.methods.l2rm:L2RM",
            "mismatched batches rematched by partial optimal transport with a learned cost",
            "L2RM, CVPR 2024",
        ),
        "ncr": (
            "cleanpairs.methods.ncr:NCR",
            "Gaussian co-dividing, soft margins from rectified labels; two networks",
            "NCR, NeurIPS 2021",
        ),
        "decl": ("cleanpairs.methods.decl:DECL", "evidence and its uncertainty weigh the pairs", "DECL, ACM MM 2022"),
        "bicro": (
            "cleanpairs.methods.bicro:BiCro",
            "similar images should have similar texts: labels from clean anchors; two networks",
            "BiCro, CVPR 2023",
        ),
        "gsc": (
            "cleanpairs.methods.gsc:GSC",
            "labels from neighbours that agree between the modalities; one or two networks",
            "GSC, CVPR 2024",
        ),
        "npc": (
            "cleanpairs.methods.npc:NPC",
            "a step on a pair is tried on a copy: what harms trusted neighbours counts less",
            "NPC, AAAI 2024",
        ),
        "cream": (
            "cleanpairs.methods.cream:CREAM",
            "clean, hard and noisy pairs by two networks; labels spread over similar pairs",
            "CREAM, TIP 2024",
        ),
        "in2r": (
            "cleanpairs.methods.in2r:IN2R",
            "noisy pairs learn from the partners of their clean neighbours, mixed by attention; two networks",
            "IN2R, ICML 2026",
        ),
        "rcl": (
            "cleanpairs.methods.rcl:RCL",
            "complementary contrastive learning: wrong answers are pushed down only",
            "RCL, TPAMI 2023",
        ),
        "mscn": (
            "cleanpairs.methods.mscn:MSCN",
            "a network that learns on clean pairs how much a noisy one counts; two networks",
            "MSCN, CVPR 2023",
            {"meta": "a small clean set of pairs (--set method.meta=DATA)"},
        ),
        "infonce": (
            "cleanpairs.methods.infonce:InfoNCE",
            "plain contrastive training, no resistance: the baseline",
            "CPC, 2018; CLIP, 2021",
        ),
        "triplet": (
            "cleanpairs.methods.triplet:Triplet",
            "plain triplet loss with hardest negatives, no resistance",
            "VSE++, BMVC 2018",
        ),
        "clip-score": (
            "cleanpairs.methods.clip_score:ClipScore",
            "normalised cosine of a pretrained CLIP or SigLIP, threshold by null pairs: nothing trained",
            "CLIPScore, EMNLP 2021; DataComp, 2023",
            {
                "model": "a CLIP or SigLIP model, a directory or a hub name (--set method.model=NAME), or data with "
                "vectors of both sides"
            },
        ),
    },
)

BACKBONES = Registry(
    "backbone",
    {
        "vse_inf": ("cleanpairs.encoders.vse_inf:VSEInf", "regions and words pooled by GPO (VSE infinity, 2021)"),
        "saf": ("cleanpairs.encoders.sgraf:SAF", "words attend over regions, similarity attention filtration (2021)"),
        "sgr": ("cleanpairs.encoders.sgraf:SGR", "words attend over regions, similarity graph reasoning (2021)"),
        "sgraf": ("cleanpairs.encoders.sgraf:SGRAF", "the mean of SAF's and SGR's similarities (2021)"),
        "mlp": ("cleanpairs.encoders.mlp:MLP", "mean region and bag of words through an MLP each: the fastest"),
    },
)

HEADS = Registry(  # models on, or of, pretrained networks: chosen by the encoders, not by name
    "model",
    {
        "joint_head": ("cleanpairs.encoders.joint_head:JointHead", "a residual MLP on vectors of one space"),
        "vector_towers": ("cleanpairs.encoders.joint_head:VectorTowers", "vectors of two spaces, brought into one"),
        "tuned_clip": ("cleanpairs.encoders.tuned:TunedCLIP", "CLIP or SigLIP: LoRA, last blocks, or all of it"),
    },
)

IMAGE_ENCODERS = Registry(
    "image encoder",
    {
        "efficientnet_lite0": (
            "cleanpairs.encoders.efficientnet_lite:EfficientNetLite0",
            "frozen EfficientNet-Lite0 (ImageNet), a 3x3 grid of 1280-d regions",
        ),
        "cnn": ("cleanpairs.encoders.cnn:SmallCNN", "a small convolutional network, from scratch, on the pixels"),
    },
)

READERS = Registry(
    "reader",
    {  # asked in this order; Parquet last, as it takes any file
        "npy": ("cleanpairs.data.formats.vector_files:VectorFilesReader", "arrays of vectors: .npy files, (n, D)"),
        "datasets": (
            "cleanpairs.data.formats.datasets_directory:DatasetsReader",
            "`datasets`: a directory of save_to_disk, an .arrow file, hf://owner/name",
        ),
        "webdataset": (
            "cleanpairs.data.formats.webdataset:WebDatasetReader",
            "WebDataset tars, img2dataset's too: a tar, a directory, braces, a glob",
        ),
        "clip-retrieval": (
            "cleanpairs.data.formats.clip_retrieval:ClipRetrievalReader",
            "embedding folder of clip-retrieval: img_emb/*.npy, text_emb/*.npy, metadata/*.parquet",
        ),
        "coco": (
            "cleanpairs.data.formats.caption_json:CaptionJsonReader",
            "COCO's captions_*.json, Karpathy's dataset_*.json",
        ),
        "precomp": ("cleanpairs.data.precomp:PrecompReader", "research layout: {split}_ims.npy and {split}_caps.txt"),
        "folder": (
            "cleanpairs.data.formats.folder:FolderReader",
            "image files named by a CSV, TSV, JSON Lines or JSON list, or with a .txt each: the file, or its folder",
        ),
        "parquet": ("cleanpairs.data.parquet:ParquetReader", "Parquet: a file, a glob or a directory"),
    },
)

ENGINES = Registry(
    "engine",
    {
        "local": ("cleanpairs.engine.local:LocalEngine", "this machine: one process, or a pool of them"),
        "ray": ("cleanpairs.engine.ray:RayEngine", "a Ray cluster, or a Ray started here: a pool of actors"),
    },
)
