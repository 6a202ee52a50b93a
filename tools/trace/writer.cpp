#include "tools/trace/writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <boost/crc.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "core/text.h"
#include "tools/trace/reader.h"

// A block is built in memory, its head is filled in when it is full, and it is handed to the system
// in one write and a flush: what a killed process leaves ends between blocks. (A machine that loses
// power may leave part of a block; the reader tells by its CRC.)

namespace ebb::trace {
namespace {

template <class T>
void put_number(std::vector<std::byte>& to, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    to.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i)));
  }
}

void set_u32(std::vector<std::byte>& at, std::size_t offset, std::uint32_t value) {
  for (std::size_t i = 0; i < 4; ++i) at[offset + i] = static_cast<std::byte>(value >> (8 * i));
}

void put_text(std::vector<std::byte>& to, const std::string& text) {
  const std::size_t n = std::min<std::size_t>(text.size(), 0xffff);
  put_number(to, static_cast<std::uint16_t>(n));
  for (std::size_t i = 0; i < n; ++i) to.push_back(static_cast<std::byte>(text[i]));
}

std::vector<std::byte> header_bytes(const Header& header) {
  std::vector<std::byte> bytes;
  for (const char c : kMagic) bytes.push_back(static_cast<std::byte>(c));
  put_number(bytes, kVersion);
  put_number(bytes, std::uint32_t{0});  // the size, below
  for (const std::uint32_t value :
       {header.n_layers, header.max_open, header.max_rows, header.top_k, header.ratio}) {
    put_number(bytes, value);
  }
  put_number(bytes, header.max_context);
  for (const std::uint32_t value : {header.row_bytes, header.slots, header.staging}) {
    put_number(bytes, value);
  }
  for (const std::string* text : {&header.policy, &header.keys, &header.model, &header.manifest}) {
    put_text(bytes, *text);
  }
  put_number(bytes, header.max_decode);
  set_u32(bytes, 12, static_cast<std::uint32_t>(bytes.size() + 4));
  put_number(bytes, crc32(bytes));
  return bytes;
}

}  // namespace

std::uint32_t crc32(std::span<const std::byte> first, std::span<const std::byte> second) {
  boost::crc_32_type crc;
  crc.process_bytes(first.data(), first.size());
  crc.process_bytes(second.data(), second.size());
  return crc.checksum();
}

Result<Writer> Writer::create(const std::string& path, const Header& header) {
  // A trace is written in place, as the run goes on: over nothing but another one.
  std::error_code error;
  const std::filesystem::file_status facts = std::filesystem::status(path, error);
  if (std::filesystem::exists(facts) &&
      (!std::filesystem::is_regular_file(facts) ||
       (std::filesystem::file_size(path, error) > 0 && !is_trace(path)))) {
    return make_error(Errc::invalid_argument, "%s: exists and is no trace: want another name",
                      printable(path).c_str());
  }
  const auto fail = [&](const char* what) {
    return make_error(Errc::invalid_argument, "%s: %s: %s", printable(path).c_str(), what,
                      std::generic_category().message(errno).c_str());
  };
  // Emptied when nobody else is found to write it.
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  FilePtr file(descriptor < 0 ? nullptr : ::fdopen(descriptor, "wb"));
  if (!file) return fail("cannot open for writing");
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return make_error(Errc::invalid_argument, "%s: another process is writing it",
                      printable(path).c_str());
  }
  if (::ftruncate(descriptor, 0) != 0) return fail("cannot empty it");
  Writer writer(path, std::move(file));
  writer.block_.reserve(2 * kBlockBytes);
  writer.block_.resize(kBlockHead);
  writer.sorted_.reserve(header.top_k);
  EBB_TRY(writer.write(header_bytes(header)));
  return writer;
}

void Writer::put_varint(std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) put(static_cast<std::uint8_t>(value | 0x80));
  put(static_cast<std::uint8_t>(value));
}

// Their number, the first, then gaps minus 1.
void Writer::put_ascending(std::span<const std::int32_t> ids) {
  put_varint(ids.size());
  std::int32_t last = -1;
  for (const std::int32_t id : ids) {
    put_varint(static_cast<std::uint64_t>(id - last - 1));
    last = id;
  }
}

Status Writer::one(Kind kind, std::int32_t sequence) {
  begin(kind);
  put_varint(static_cast<std::uint64_t>(sequence));
  return finish_record();
}

Status Writer::step(std::span<const std::int32_t> pos, std::span<const std::int32_t> sequence) {
  begin(Kind::step);
  put_varint(pos.size());
  for (std::size_t first = 0, end = 0; first < pos.size(); first = end) {
    while (end < pos.size() && sequence[end] == sequence[first]) ++end;
    put_varint(static_cast<std::uint64_t>(sequence[first]));
    put_varint(static_cast<std::uint64_t>(pos[first]));
    put_varint(end - first);
  }
  return finish_record();
}

Status Writer::selected(std::int32_t layer, std::int32_t row, std::span<const std::int32_t> ids) {
  sorted_.assign(ids.begin(), ids.end());
  std::sort(sorted_.begin(), sorted_.end());
  begin(Kind::selected);
  put_varint(static_cast<std::uint64_t>(layer));
  put_varint(static_cast<std::uint64_t>(row));
  put_ascending(sorted_);
  return finish_record();
}

Status Writer::scored(std::int32_t sequence, std::span<const float> scores,
                      std::span<const std::int32_t> kept) {
  begin(Kind::scored);
  put_varint(static_cast<std::uint64_t>(sequence));
  put_varint(scores.size());
  for (const float score : scores) {
    std::uint32_t bits;
    std::memcpy(&bits, &score, sizeof(bits));
    put_number(block_, bits);
  }
  put_ascending(kept);
  return finish_record();
}

Status Writer::settled() {
  begin(Kind::settled);
  return finish_record();
}

Status Writer::filled(std::int32_t sequence, std::int64_t n_tokens) {
  begin(Kind::filled);
  put_varint(static_cast<std::uint64_t>(sequence));
  put_varint(static_cast<std::uint64_t>(n_tokens));
  return finish_record();
}

Status Writer::end(std::span<const Counter> counters) {
  begin(Kind::end);
  put_varint(counters.size());
  for (const Counter& counter : counters) {
    put(static_cast<std::uint8_t>(counter.name.size()));
    for (const char c : counter.name) put(static_cast<std::uint8_t>(c));
    put_varint(counter.value);
  }
  EBB_TRY(finish_record(true));
  if (::fsync(::fileno(file_.get())) != 0 && errno != EINVAL) {  // EINVAL: a pipe
    return make_error(Errc::io, "%s: cannot write: %s", printable(path_).c_str(),
                      std::generic_category().message(errno).c_str());
  }
  return ok_status();
}

Status Writer::finish_record(bool flush) {
  if (!fault_.empty()) {
    block_.resize(kBlockHead);
    return Error{Errc::io, fault_};
  }
  ++n_records_;
  if (block_.size() < kBlockBytes && !flush) return ok_status();
  set_u32(block_, 0, kBlockMagic);
  set_u32(block_, 4, static_cast<std::uint32_t>(block_.size() - kBlockHead));
  set_u32(block_, 8, n_records_);
  const std::span<const std::byte> bytes(block_);
  set_u32(block_, 12, crc32(bytes.subspan(4, 8), bytes.subspan(kBlockHead)));
  const Status written = write(block_);
  block_.resize(kBlockHead);
  n_records_ = 0;
  return written;
}

Status Writer::write(std::span<const std::byte> bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) == bytes.size() &&
      std::fflush(file_.get()) == 0) {
    return ok_status();
  }
  fault_ = printable(path_) + ": cannot write: " + std::generic_category().message(errno);
  return Error{Errc::io, fault_};
}

}  // namespace ebb::trace
