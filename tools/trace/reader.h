#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/api/result.h"
#include "tools/trace/format.h"
#include "tools/trace/writer.h"

namespace ebb::trace {

/// Whether a file begins as a trace does.
bool is_trace(const std::string& path);

/// Reads a trace from front to back, one block in memory. Everything is checked: what next()
/// returns is in order and within the ranges that the header sets, so that it can be handed on.
class Reader {
 public:
  /// `recover`: a trace that was not ended, or whose last block is torn, ends where it can be read
  /// no further, instead of being refused there.
  /// Errors: invalid_argument with file, offset and reason; not_found; io.
  static Result<Reader> open(const std::string& path, bool recover);

  const Header& header() const { return header_; }
  /// The next record, borrowed until the next call; nullptr after the last one. Errors as open.
  Result<const Record*> next();
  /// Why a trace that was read to its end with `recover` is not whole, or "".
  const std::string& torn() const { return torn_; }
  std::uint64_t n_blocks() const { return n_blocks_; }
  std::uint64_t offset() const { return block_at_; }

 private:
  Reader(std::string path, FilePtr file, bool recover)
      : path_(std::move(path)), file_(std::move(file)), recover_(recover) {}
  Status read_header();
  Result<bool> read_block();
  Result<bool> tear(std::uint64_t at, const std::string& why);
  Error fault(std::uint64_t at, const std::string& why) const;
  Result<std::size_t> read(std::byte* to, std::size_t n);
  Status parse();
  Status parse_step();
  Status parse_selected();
  Status parse_ascending(std::uint64_t n, std::int64_t end, const char* beyond);
  Status parse_scored();
  Status parse_filled();
  Status parse_end();
  Status number(const char* what, std::uint64_t low, std::uint64_t high, std::uint64_t& value);
  Status sequence(bool is_open);
  Error here(const std::string& why) const { return fault(block_at_ + kBlockHead + at_, why); }

  std::string path_;
  FilePtr file_;
  bool recover_;
  Header header_;
  std::uint64_t file_at_ = 0;   // offset of the next byte
  std::uint64_t block_at_ = 0;  // of the block's head
  std::vector<std::byte> payload_;
  std::size_t at_ = 0;  // in the payload
  std::uint32_t n_left_ = 0;
  std::uint64_t n_blocks_ = 0;
  Record record_;
  std::vector<std::int64_t> length_;  // tokens by sequence, -1: closed
  std::vector<Run> step_;             // the last step
  bool ended_ = false;
  std::string torn_;
};

}  // namespace ebb::trace
