"""Reads what `ebb dump` writes."""

import json
import pathlib
import sys

import torch
from safetensors.torch import load_file

from failures import blaming

VERSION = 1
# Dumps that differ in one of these cannot train one scorer.
SAME = ("model", "layers", "d_model", "d", "n_heads", "ratio", "top_k", "weight_scale",
        "transformed", "rope")


class Document:
    """One dumped document; tensors on `device`, vectors in fp32 when asked for."""

    def __init__(self, folder, entry, about, device):
        with blaming(folder / entry["file"]):
            tensors = load_file(str(folder / entry["file"]))
            self.id, self.about = entry["id"], about
            self.position = tensors["positions"].to(device)
            self.tokens = tensors["tokens"]
            self.row_token = self.tokens[tensors["positions"]].to(device)
        self.layers = [layer["layer"] for layer in about["layers"]]
        self.tensors = {name: value.to(device) for name, value in tensors.items()
                        if "_layer_" in name}

    def _get(self, what, layer):
        return self.tensors[f"{what}_layer_{layer}"]

    def hidden(self, layer, rows):
        return self._get("hidden", layer)[rows].float()

    def keys(self, layer):
        return self._get("keys", layer)

    def index(self, layer, rows):
        """The model's index queries and their weights, scaled."""
        return (self._get("index_q", layer)[rows].float(),
                self._get("index_weight", layer)[rows] * self.about["weight_scale"])

    def visible(self, rows):
        """Chunks that the token of each row may select."""
        return (self.position[rows] + 1) // self.about["ratio"]

    @property
    def n_rows(self):
        return len(self.position)

    @property
    def n_chunks(self):
        return self.keys(self.layers[0]).shape[0]

    def drop_queries(self):
        """Frees the model's queries, the bulk of a dump, once the labels are made."""
        for name in [name for name in self.tensors if name.startswith("index_")]:
            del self.tensors[name]


def read_about(folder):
    path = pathlib.Path(folder) / "dump.json"
    if not path.is_file():
        raise SystemExit(f"{folder}: no dump.json: not a dump, or one that was not finished")
    with blaming(path):
        about = json.loads(path.read_text())
        version = about.get("ebb_dump")
        lacks = [key for key in (*SAME, "documents") if key not in about]
    if version != VERSION:
        raise SystemExit(f"{path}: version {version}: want {VERSION}")
    if lacks:
        raise SystemExit(f"{path}: no {lacks[0]} in it")
    return about


def read_dumps(folders, device="cpu"):
    """The description that all share, and an iterator over the documents."""
    abouts = [read_about(folder) for folder in folders]
    for folder, about in zip(folders, abouts):
        for key in SAME:
            if about[key] != abouts[0][key]:
                raise SystemExit(f"{folder}: {key} differs from that of {folders[0]}")
        if not about.get("complete", True):
            print(f"{folder}: the dump was ended early: it has {len(about['documents'])} documents",
                  file=sys.stderr)

    def documents():
        for folder, about in zip(folders, abouts):
            for entry in about["documents"]:
                yield Document(pathlib.Path(folder), entry, about, device)

    return abouts[0], documents()


def pick_device(name):
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    with blaming(f"--device {name}"):
        device = torch.device(name)
        torch.empty(0, device=device)
    return device
