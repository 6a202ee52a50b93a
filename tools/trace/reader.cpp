#include "tools/trace/reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <span>
#include <system_error>

#include "core/text.h"

// A block is read whole and its CRC compared before anything in it is looked at, so a fault in a
// record after that means a wrong writer, not a wrong disk; both are refused. What ends early, or
// does not match its CRC and is the last of the file, is a torn end: whoever asks to recover gets
// all before it.

namespace ebb::trace {
namespace {

std::uint64_t get(const std::byte* at, std::size_t n) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < n; ++i) value |= static_cast<std::uint64_t>(at[i]) << (8 * i);
  return value;
}

std::uint32_t get_u32(const std::byte* at) { return static_cast<std::uint32_t>(get(at, 4)); }

FilePtr open_file(const std::string& path) { return FilePtr(std::fopen(path.c_str(), "rbe")); }

}  // namespace

bool is_trace(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    return false;  // a FIFO would wait for a writer
  const FilePtr file = open_file(path);
  char magic[sizeof(kMagic)];
  return file && std::fread(magic, 1, sizeof(magic), file.get()) == sizeof(magic) &&
         std::memcmp(magic, kMagic, sizeof(magic)) == 0;
}

Result<Reader> Reader::open(const std::string& path, bool recover) {
  // A replay reads it more than once, from its beginning.
  std::error_code error;
  const std::filesystem::file_status facts = std::filesystem::status(path, error);
  if (std::filesystem::exists(facts) && !std::filesystem::is_regular_file(facts)) {
    return make_error(Errc::invalid_argument, "%s: not a regular file", printable(path).c_str());
  }
  FilePtr file = open_file(path);
  if (!file) {
    const Errc code = errno == ENOENT ? Errc::not_found : Errc::invalid_argument;
    return make_error(code, "%s: cannot open: %s", printable(path).c_str(),
                      std::generic_category().message(errno).c_str());
  }
  Reader reader(path, std::move(file), recover);
  EBB_TRY(reader.read_header());
  reader.length_.assign(reader.header_.max_open, -1);
  return reader;
}

Error Reader::fault(std::uint64_t at, const std::string& why) const {
  return make_error(Errc::invalid_argument, "%s: at byte %llu: %s", printable(path_).c_str(),
                    static_cast<unsigned long long>(at), why.c_str());
}

// Fewer bytes than asked for only at the end of the file.
Result<std::size_t> Reader::read(std::byte* to, std::size_t n) {
  const std::size_t got = std::fread(to, 1, n, file_.get());
  if (got < n && std::ferror(file_.get()) != 0) {
    return make_error(Errc::io, "%s: cannot read: %s", printable(path_).c_str(),
                      std::generic_category().message(errno).c_str());
  }
  file_at_ += got;
  return got;
}

Status Reader::read_header() {
  std::vector<std::byte> bytes(16);
  EBB_ASSIGN(std::size_t got, read(bytes.data(), bytes.size()));
  if (got < 16 || std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) {
    return fault(0, "no trace: it does not begin with EBBTRACE");
  }
  header_.version = get_u32(&bytes[8]);
  if (header_.version < 1 || header_.version > kVersion) {
    return fault(8, "version " + std::to_string(header_.version) +
                        ": this program reads versions 1.." + std::to_string(kVersion));
  }
  const std::size_t size = get_u32(&bytes[12]);
  if (size < 16 || size > kMaxHeaderBytes) {
    return fault(12, "a header of " + std::to_string(size) + " bytes");
  }
  bytes.resize(size);
  EBB_ASSIGN(got, read(&bytes[16], size - 16));
  if (got < size - 16) return fault(file_at_, "the file ends in its header");
  if (crc32(std::span(bytes).first(size - 4)) != get_u32(&bytes[size - 4])) {
    return fault(size - 4, "the header does not match its CRC");
  }
  std::size_t at = 16;
  const std::size_t end = size - 4;
  bool is_short = false;
  const auto take = [&](std::size_t n) {
    is_short |= at + n > end;
    const std::uint64_t value = is_short ? 0 : get(&bytes[at], n);
    at += n;
    return value;
  };
  const auto take_u32 = [&] { return static_cast<std::uint32_t>(take(4)); };
  for (std::uint32_t* value :
       {&header_.n_layers, &header_.max_open, &header_.max_rows, &header_.top_k, &header_.ratio}) {
    *value = take_u32();
  }
  header_.max_context = take(8);
  for (std::uint32_t* value : {&header_.row_bytes, &header_.slots, &header_.staging}) {
    *value = take_u32();
  }
  for (std::string* text : {&header_.policy, &header_.keys, &header_.model, &header_.manifest}) {
    const auto n = static_cast<std::size_t>(take(2));
    if (is_short || at + n > end) return fault(at, "the header is shorter than its fields");
    text->assign(reinterpret_cast<const char*>(&bytes[at]), n);
    at += n;
  }
  header_.max_decode = header_.version < 3 ? header_.max_open : take_u32();
  if (is_short) return fault(at, "the header is shorter than its fields");
  // Wide enough for any run, narrow enough for every product of two to fit into 63 bits.
  const auto within = [](std::uint64_t value, std::uint64_t low, std::uint64_t high) {
    return value >= low && value <= high;
  };
  if (!within(header_.n_layers, 1, 1 << 10) || !within(header_.max_open, 1, 1 << 16) ||
      !within(header_.max_decode, 1, header_.max_open) || !within(header_.max_rows, 1, 1 << 20) ||
      !within(header_.top_k, 1, 1 << 16) || !within(header_.ratio, 1, 1 << 16) ||
      !within(header_.max_context, 1, 1 << 24) || !within(header_.row_bytes, 1, 1 << 20) ||
      !within(header_.staging, 1, 2) || header_.slots > 1 << 30) {
    return fault(16, "a size in the header is out of range");
  }
  return ok_status();
}

// The file ends, or its last block is damaged, at `at`.
Result<bool> Reader::tear(std::uint64_t at, const std::string& why) {
  if (!recover_) {
    return fault(at, why + "; what stands before can be used: --recover");
  }
  torn_ = fault(at, why).message;
  ended_ = true;
  return false;
}

// False at the end of a trace that is recovered.
Result<bool> Reader::read_block() {
  std::byte head[kBlockHead];
  block_at_ = file_at_;
  EBB_ASSIGN(std::size_t got, read(head, kBlockHead));
  if (got == 0) return tear(block_at_, "the trace was not ended");
  if (got < kBlockHead) return tear(block_at_, "the last block is torn");
  const std::size_t size = get_u32(&head[4]);
  if (get_u32(head) != kBlockMagic || size > kMaxBlockBytes) {
    // Where a machine lost power, a file may end in zeros.
    return fault(block_at_, "no block begins here");
  }
  payload_.resize(size);
  EBB_ASSIGN(got, read(payload_.data(), size));
  if (got < size) return tear(block_at_, "the last block is torn");
  if (crc32(std::span(head).subspan(4, 8), payload_) != get_u32(&head[12])) {
    const int more = std::fgetc(file_.get());
    if (more == EOF) return tear(block_at_, "the last block does not match its CRC");
    return fault(block_at_, "a block does not match its CRC");
  }
  n_left_ = get_u32(&head[8]);
  at_ = 0;
  ++n_blocks_;
  return true;
}

Result<const Record*> Reader::next() {
  while (n_left_ == 0) {
    if (at_ < payload_.size()) return here("a block goes on after its last record");
    if (ended_) return static_cast<const Record*>(nullptr);
    EBB_ASSIGN(const bool is_read, read_block());
    if (!is_read) return static_cast<const Record*>(nullptr);
  }
  --n_left_;
  EBB_TRY(parse());
  if (record_.kind == Kind::end) {
    ended_ = true;
    std::byte more;
    EBB_ASSIGN(const std::size_t got, read(&more, 1));
    if (n_left_ > 0 || got > 0) return here("the trace goes on after its end");
  }
  return &record_;
}

Status Reader::number(const char* what, std::uint64_t low, std::uint64_t high,
                      std::uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (at_ >= payload_.size()) return here("a record is longer than its block");
    const auto byte = static_cast<std::uint64_t>(payload_[at_++]);
    value |= (byte & 0x7f) << shift;
    if (byte & 0x80) continue;
    if (value >= low && value <= high) return ok_status();
    break;
  }
  return here(std::string(what) + " = " + std::to_string(value) + ": want " + std::to_string(low) +
              ".." + std::to_string(high));
}

// The sequence of a record, which has to be open, or closed.
Status Reader::sequence(bool is_open) {
  std::uint64_t value;
  EBB_TRY(number("sequence", 0, header_.max_open - 1, value));
  record_.sequence = static_cast<std::int32_t>(value);
  if ((length_[value] >= 0) != is_open) {
    return here("sequence " + std::to_string(value) +
                (is_open ? " is not open" : " is open already"));
  }
  return ok_status();
}

Status Reader::parse() {
  if (at_ >= payload_.size()) return here("a block has fewer records than it says");
  const auto kind = static_cast<std::uint8_t>(payload_[at_++]);
  record_.kind = static_cast<Kind>(kind);
  switch (record_.kind) {
    case Kind::open:
      EBB_TRY(sequence(false));
      length_[static_cast<std::size_t>(record_.sequence)] = 0;
      return ok_status();
    case Kind::close:
      EBB_TRY(sequence(true));
      length_[static_cast<std::size_t>(record_.sequence)] = -1;
      step_.clear();  // its rows may be gone
      return ok_status();
    case Kind::step:
      return parse_step();
    case Kind::selected:
      return parse_selected();
    case Kind::scored:
      return parse_scored();
    case Kind::settled:
      return ok_status();
    case Kind::end:
      return parse_end();
    case Kind::filled:
      if (header_.version >= 3) return parse_filled();
      break;
  }
  --at_;
  return here("a record of unknown kind " + std::to_string(kind));
}

Status Reader::parse_step() {
  std::uint64_t n_rows, first, n;
  EBB_TRY(number("rows", 1, header_.max_rows, n_rows));
  step_.clear();
  for (std::uint64_t row = 0; row < n_rows; row += n) {
    EBB_TRY(sequence(true));
    for (const Run& run : step_) {
      if (run.sequence == record_.sequence) return here("a sequence stands in a step twice");
    }
    std::int64_t& length = length_[static_cast<std::size_t>(record_.sequence)];
    const auto at = static_cast<std::uint64_t>(length);
    EBB_TRY(number("position", at, at, first));
    EBB_TRY(number("rows", 1, std::min(n_rows - row, header_.max_context - at), n));
    length += static_cast<std::int64_t>(n);
    step_.push_back(
        {record_.sequence, static_cast<std::int32_t>(first), static_cast<std::int32_t>(n)});
  }
  record_.runs = step_;
  return ok_status();
}

Status Reader::parse_selected() {
  std::uint64_t layer, row, n;
  EBB_TRY(number("layer", 0, header_.n_layers - 1, layer));
  EBB_TRY(number("row", 0, header_.max_rows - 1, row));
  // Chunks are visible to a row from the token on that completes them.
  std::int64_t n_complete = -1;
  std::uint64_t first = 0;
  for (const Run& run : step_) {
    const auto rows = static_cast<std::uint64_t>(run.n_rows);
    if (row >= first && row < first + rows) {
      const std::int64_t pos = run.first_pos + static_cast<std::int64_t>(row - first);
      n_complete = (pos + 1) / header_.ratio;
      record_.sequence = run.sequence;
    }
    first += rows;
  }
  if (n_complete < 0) return here("row " + std::to_string(row) + " is not in the step");
  EBB_TRY(number("count", 0,
                 std::min<std::uint64_t>(header_.top_k, static_cast<std::uint64_t>(n_complete)),
                 n));
  record_.layer = static_cast<std::int32_t>(layer);
  record_.row = static_cast<std::int32_t>(row);
  return parse_ascending(n, n_complete, "a chunk that is not complete");
}

// Ids in [0, end).
Status Reader::parse_ascending(std::uint64_t n, std::int64_t end, const char* beyond) {
  std::uint64_t gap;
  record_.ids.clear();
  for (std::int64_t next = 0; n > 0; --n, ++next) {
    EBB_TRY(number("gap of ids", 0,
                   static_cast<std::uint64_t>(std::max<std::int64_t>(end - next - 1, 0)), gap));
    next += static_cast<std::int64_t>(gap);
    if (next >= end) return here(beyond);
    record_.ids.push_back(static_cast<std::int32_t>(next));
  }
  return ok_status();
}

Status Reader::parse_scored() {
  std::uint64_t n;
  EBB_TRY(sequence(true));
  EBB_TRY(number("count", 0, header_.n_chunks(), n));
  if (payload_.size() - at_ < 4 * n) return here("a record is longer than its block");
  record_.scores.resize(n);
  for (float& score : record_.scores) {
    const std::uint32_t bits = get_u32(&payload_[at_]);
    std::memcpy(&score, &bits, sizeof(score));
    at_ += 4;
  }
  record_.ids.clear();
  if (header_.version < 2) return ok_status();
  std::uint64_t n_kept;
  EBB_TRY(number("kept", 0, n, n_kept));
  return parse_ascending(n_kept, static_cast<std::int64_t>(n), "a kept chunk without a score");
}

Status Reader::parse_filled() {
  std::uint64_t n;
  EBB_TRY(sequence(true));
  std::int64_t& length = length_[static_cast<std::size_t>(record_.sequence)];
  if (length > 0) return here("a sequence is filled that is not empty");
  EBB_TRY(number("tokens", 0, header_.max_context, n));
  record_.n_tokens = length = static_cast<std::int64_t>(n);
  return ok_status();
}

Status Reader::parse_end() {
  std::uint64_t n, value;
  EBB_TRY(number("counters", 0, 256, n));
  record_.counters.clear();
  for (; n > 0; --n) {
    std::uint64_t size = at_ < payload_.size() ? static_cast<std::uint64_t>(payload_[at_++]) : 0;
    if (payload_.size() - at_ < size) return here("a record is longer than its block");
    std::string name(reinterpret_cast<const char*>(payload_.data()) + at_, size);
    at_ += size;
    EBB_TRY(number("counter", 0, std::numeric_limits<std::uint64_t>::max(), value));
    record_.counters.push_back({std::move(name), value});
  }
  return ok_status();
}

}  // namespace ebb::trace
