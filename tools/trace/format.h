#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ebb::trace {

// A trace is what staging was told during a run, so that it can be told the same again. All numbers
// are little-endian.
//
//   header   magic "EBBTRACE", u32 version, u32 header bytes, then the fields of Header in the
//            order below (u64 for 64-bit ones, u32 for the rest, text as u16 length and bytes),
//            u32 CRC of all before it
//   block    u32 "EBBK", u32 payload bytes, u32 records, u32 CRC of the 8 bytes before and the
//            payload; then the payload
//   record   u8 kind, then varints (LEB128: 7 bits a byte, low ones first):
//     open      sequence
//     close     sequence
//     step      rows, then runs until all rows are told: sequence, first position, rows
//     selected  layer, row, count, then the ids ascending: the first, then gaps minus 1
//     scored    sequence, count, then count f32; kept, then the kept chunks as ids of selected.
//               Version 1 ends before `kept`
//     settled   nothing: the last step's selections were learned from before the next step began
//     end       counters by name: count, then u8 length, name, varint each
//     filled    sequence, tokens: so many are in an empty sequence that were not fed to it. From
//               version 3 on
//
// CRC is CRC-32 as in zlib and PNG. The last record of a whole trace is `end`; a run that was
// killed leaves a trace without it, whole up to some block.

inline constexpr char kMagic[8] = {'E', 'B', 'B', 'T', 'R', 'A', 'C', 'E'};
/// Of what is written; what is read may be older.
inline constexpr std::uint32_t kVersion = 3;
inline constexpr std::uint32_t kBlockMagic = 0x4b424245;  // "EBBK"
inline constexpr std::size_t kBlockHead = 16;
/// A writer closes a block from this size on; a reader takes none that is larger than the other.
inline constexpr std::size_t kBlockBytes = 64 << 10;
inline constexpr std::size_t kMaxBlockBytes = 64 << 20;
inline constexpr std::size_t kMaxHeaderBytes = 64 << 10;

enum class Kind : std::uint8_t { open = 1, close, step, selected, scored, settled, end, filled };

/// How the run was staged: what replay starts from. A replay may take other slots.
struct Header {
  std::uint32_t version = kVersion;
  std::uint32_t n_layers = 0;  ///< staged ones
  std::uint32_t max_open = 0;  ///< sequences that are open at one time
  std::uint32_t max_rows = 0;  ///< of a step
  std::uint32_t top_k = 0;
  std::uint32_t ratio = 0;        ///< tokens per chunk
  std::uint64_t max_context = 0;  ///< tokens
  std::uint32_t row_bytes = 0;
  std::uint32_t slots = 0;    ///< per layer and sequence
  std::uint32_t staging = 0;  ///< StagingMode
  std::string policy;         ///< name of the swap module
  std::string keys;           ///< of [swap], as TOML without a header
  std::string model;          ///< Loader::digest
  std::string manifest;       ///< Manifest::hash
  /// Rows of a step that has its selections told, at most; in files up to version 2, max_open.
  std::uint32_t max_decode = 1;

  std::uint64_t n_chunks() const { return ratio > 0 ? (max_context + ratio - 1) / ratio : 0; }
};

struct Run {
  std::int32_t sequence = 0;
  std::int32_t first_pos = 0;
  std::int32_t n_rows = 0;
};

struct Counter {
  std::string name;
  std::uint64_t value = 0;
};

/// One record, read. The lists are valid until the next one is read.
struct Record {
  Kind kind = Kind::end;
  std::int32_t sequence = 0;        ///< open, close, scored, filled
  std::int32_t layer = 0, row = 0;  ///< selected
  std::vector<Run> runs{};          ///< step
  std::vector<std::int32_t> ids{};  ///< selected: the chunks; scored: the kept ones; ascending
  std::vector<float> scores{};      ///< scored, by chunk
  std::vector<Counter> counters{};  ///< end
  std::int64_t n_tokens = 0;        ///< filled
};

/// CRC-32 (polynomial 0x04c11db7 reflected, as zlib's crc32) of several pieces.
std::uint32_t crc32(std::span<const std::byte> first, std::span<const std::byte> second = {});

}  // namespace ebb::trace
