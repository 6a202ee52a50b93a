#!/usr/bin/env python3
"""Takes the indexers' weights out of a GGUF model, as a start for scorers (`train.py --init`): a
scorer has the form of the model's own indexer, down to the query latent that it shares with the
attention.
"""

import re

from failures import Parser, blaming, need, run

need("gguf", "numpy", "torch", "safetensors")

import gguf  # noqa: E402
import torch  # noqa: E402
from gguf.quants import dequantize  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

TAKEN = {"attn_q_a.weight": "wq_a.weight", "attn_q_a_norm.weight": "q_norm_weight",
         "indexer.attn_q_b.weight": "wq_b.weight", "indexer.proj.weight": "weights_proj.weight"}


def main():
    parser = Parser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", metavar="MODEL.gguf", help="split models: every part", nargs="+")
    parser.add_argument("-o", "--output", required=True, metavar="INIT.safetensors")
    args = parser.parse_args()
    found = {}
    for path in args.model:
        with blaming(path):
            for tensor in gguf.GGUFReader(path).tensors:
                match = re.fullmatch(r"blk\.(\d+)\.(.+)", tensor.name)
                if match and match[2] in TAKEN:
                    values = dequantize(tensor.data, tensor.tensor_type).copy()
                    values = torch.from_numpy(values).float()
                    found[int(match[1]), TAKEN[match[2]]] = values.contiguous()
    layers = sorted(layer for layer, part in found if part == "wq_b.weight")
    if not layers:
        raise SystemExit(f"{args.model[0]}: no layer has an indexer")
    with blaming(args.model[0]):
        tensors = {f"layer_{layer}.{part}": found[layer, part]
                   for layer in layers for part in TAKEN.values()}
    with blaming(args.output):
        save_file(tensors, args.output)
    print(f"{args.output}: indexers of layers {layers}")


if __name__ == "__main__":
    run(main)
