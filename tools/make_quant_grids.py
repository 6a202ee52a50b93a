#!/usr/bin/env python3
"""Writes kernels/quant_grids.h and kernels/quant_grids.cpp.

The codebooks of the IQ quantisation types are trained constants that no formula yields. They are
taken from the `gguf` Python package (ggml authors, MIT licence) and checked against known SHA-256
sums, so a package that ships other numbers cannot slip in.

    pip install gguf
    python tools/make_quant_grids.py            # from the repository root
"""

import argparse
import hashlib
import pathlib
import subprocess
import sys

import numpy as np

# constant, gguf class, C type, what it is for, SHA-256 of the little-endian array
TABLES = [
    ("kGridIq2Xxs", "IQ2_XXS", "u64", "IQ2_XXS: 8 magnitudes out of {8, 25, 43}.",
     "05826b5d3e472a3a78f196be62ac78acf81df0f909626e12ab9fa2a5d490dd54"),
    ("kGridIq2Xs", "IQ2_XS", "u64", "IQ2_XS: 8 magnitudes out of {8, 25, 43}.",
     "06e47aaca60b4dc1d9b5a3f34540437058a6b142b4d7a59d5ded769b4d1bf1de"),
    ("kGridIq2S", "IQ2_S", "u64", "IQ2_S: 8 magnitudes out of {8, 25, 43}.",
     "e1aa1473412b0552c2174c30ef22ab4073f6a181b85a17056e8249bd2932fd88"),
    ("kGridIq3Xxs", "IQ3_XXS", "u32", "IQ3_XXS: 4 magnitudes out of {4, 12, ..., 52, 62}.",
     "46e35f5a997efdee6c99ce57854c8a0d4f0ff8ca57e5e8a60c0793ea580acf5d"),
    ("kGridIq3S", "IQ3_S", "u32", "IQ3_S: 4 magnitudes out of {1, 3, ..., 15}.",
     "bd1af4945a1717c65610b0284e4628b9a1ba3b306fae3a06f6e5f597356e349f"),
    ("kGridIq1S", "IQ1_S", "u64", "IQ1_S and IQ1_M: 8 signed bytes out of {-1, 0, 1}.",
     "07540ffc1aeaf6ad4d97e96b0fcc765aae39671d4ae4a27bbd0e796fde167c6a"),
]

SOURCE = """// Data from the `gguf` Python package (https://github.com/ggml-org/llama.cpp, gguf-py), MIT
// licence, Copyright (c) 2023 Georgi Gerganov; the licence is in quant_grids.license.txt.
// Written by tools/make_quant_grids.py; do not edit.
"""

HEADER = """#pragma once

""" + SOURCE + """
#include <cstdint>

namespace ebb::kernels {

// Codebooks of the IQ quantisation types. Entry i holds the values of codeword i as bytes, the first
// value in the least significant byte. Plain arrays with static storage: a device kernel reads a
// copy that its owner uploads.

%s
/// Sign byte of a 7-bit sign field: bit i set means value i is negative. Codewords carry an even
/// number of minus signs, so the eighth bit is the parity of the other seven.
constexpr std::uint8_t sign_byte(std::uint32_t field) noexcept {
  std::uint32_t parity = field ^ (field >> 4);
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return static_cast<std::uint8_t>(field | (parity & 1) << 7);
}

}  // namespace ebb::kernels
"""


def load_grid(class_name, c_type):
    """One codebook as an array of little-endian words."""
    import gguf.quants

    quant = getattr(gguf.quants, class_name)
    quant.init_grid()
    values = quant.grid.reshape(quant.grid_shape).astype(np.int8)
    return values.view({"u64": "<u8", "u32": "<u4"}[c_type]).reshape(-1)


def format_rows(words, c_type):
    digits, per_line = (16, 4) if c_type == "u64" else (8, 7)
    cells = [f"0x{int(word):0{digits}x}" for word in words]
    lines = [", ".join(cells[i:i + per_line]) for i in range(0, len(cells), per_line)]
    return ",\n    ".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("kernels"))
    args = parser.parse_args()

    declarations, definitions = [], []
    for name, class_name, c_type, comment, sha in TABLES:
        words = load_grid(class_name, c_type)
        found = hashlib.sha256(words.tobytes()).hexdigest()
        if found != sha:
            sys.exit(f"{class_name}: SHA-256 is {found}, expected {sha}")
        cpp_type = {"u64": "std::uint64_t", "u32": "std::uint32_t"}[c_type]
        declarations.append(f"/// {comment}\nextern const {cpp_type} {name}[{len(words)}];\n")
        definitions.append(f"const {cpp_type} {name}[{len(words)}] = {{\n    "
                           f"{format_rows(words, c_type)}}};\n")

    header, body = args.out / "quant_grids.h", args.out / "quant_grids.cpp"
    header.write_text(HEADER % "\n".join(declarations))
    body.write_text('#include "kernels/quant_grids.h"\n\n' + SOURCE +
                    "\n// clang-format off\nnamespace ebb::kernels {\n\n" + "\n".join(definitions) +
                    "\n}  // namespace ebb::kernels\n// clang-format on\n")
    subprocess.run(["clang-format", "-i", str(header)], check=True)


if __name__ == "__main__":
    main()
