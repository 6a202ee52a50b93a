#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/api/result.h"
#include "tools/trace/format.h"

namespace ebb::trace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using FilePtr = std::unique_ptr<std::FILE, CloseFile>;

/// Writes a trace block by block; holds one block in memory. A killed run leaves whole blocks and
/// at most a torn one. After an error every further call fails with it.
class Writer {
 public:
  /// Replaces a trace that is there. Errors: invalid_argument for a path that cannot be written,
  /// for what is no trace, and for what another process is writing; io.
  static Result<Writer> create(const std::string& path, const Header& header);

  Status open(std::int32_t sequence) { return one(Kind::open, sequence); }
  Status close(std::int32_t sequence) { return one(Kind::close, sequence); }
  /// Rows of one sequence stand together, at consecutive positions.
  Status step(std::span<const std::int32_t> pos, std::span<const std::int32_t> sequence);
  /// `ids` of a row of the last step, in any order, without doubles.
  Status selected(std::int32_t layer, std::int32_t row, std::span<const std::int32_t> ids);
  /// `kept` ascending, each below the number of scores.
  Status scored(std::int32_t sequence, std::span<const float> scores,
                std::span<const std::int32_t> kept);
  Status settled();
  Status filled(std::int32_t sequence, std::int64_t n_tokens);
  /// The last call: with it the trace is whole, and on disk.
  Status end(std::span<const Counter> counters);

 private:
  Writer(std::string path, FilePtr file) : path_(std::move(path)), file_(std::move(file)) {}
  Status one(Kind kind, std::int32_t sequence);
  void put(std::uint8_t byte) { block_.push_back(static_cast<std::byte>(byte)); }
  void put_varint(std::uint64_t value);
  void put_ascending(std::span<const std::int32_t> ids);
  void begin(Kind kind) { put(static_cast<std::uint8_t>(kind)); }
  Status finish_record(bool flush = false);
  Status write(std::span<const std::byte> bytes);

  std::string path_;
  FilePtr file_;
  std::vector<std::byte> block_;  // head and payload
  std::uint32_t n_records_ = 0;
  std::vector<std::int32_t> sorted_;
  std::string fault_;
};

}  // namespace ebb::trace
