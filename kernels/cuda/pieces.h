#pragma once

#include <cstdint>

namespace ebb::cuda {

/// Entries of the sorted list that meet one expert.
struct Piece {
  std::int32_t expert;
  std::int32_t first;
  std::int32_t n;
  std::int32_t cost_before;  // piece_cost of all pieces before it
};

/// What a tile of weights costs past so many columns, where one or two are done in a way of their
/// own (tensor_diagonal.cuh); past one it is 16.
constexpr std::int32_t piece_cost(std::int32_t columns) {
  return columns == 1 ? 16 : columns == 2 ? 19 : 25;
}

/// The work of a product as pieces: vectors that meet one matrix. Without ids, a piece is up to
/// `rows` rows of the step and matrix index / n_ranges, a group; else an entry (row, slot) of ids,
/// or a piece of the entries sorted by expert.
struct Pieces {
  const std::int32_t* n_rows = nullptr;
  const std::int32_t* ids = nullptr;      ///< [n_rows, n_used], the expert of every entry
  const std::int32_t* entries = nullptr;  ///< row * n_used + slot by expert; nullptr: not sorted
  const Piece* pieces = nullptr;
  const std::int32_t* n_pieces = nullptr;  ///< and behind it the piece_cost of all
  std::int32_t n_used = 0;
  std::int32_t n_experts = 0;
  std::int32_t rows = 1;
  std::int32_t n_ranges = 1;
  // The vector of a row is row * vector_stride + vector_first + group or, with ids,
  // row * vector_stride + vector_slot * slot; likewise its place in the output.
  std::int32_t vector_stride = 1, vector_first = 0, vector_slot = 0;
  std::int32_t place_stride = 1, place_first = 0;
};

}  // namespace ebb::cuda
