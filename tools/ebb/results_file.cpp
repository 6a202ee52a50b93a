#include "tools/ebb/results_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include "core/text.h"
#include "ebb_abi.h"
#include "tools/ebb/exit_status.h"
#include "tools/ebb/fields.h"
#include "tools/ebb/output_file.h"
#include "tools/ebb/session.h"
#include "tools/ebb/swap_counters.h"
#include "tools/ebb/temporary.h"

namespace ebb::cli {
namespace {

using nlohmann::ordered_json;

ordered_json provenance_json(const Provenance& provenance, const GenerationSettings& settings,
                             std::uint64_t digest) {
  return {{"version", EBB_VERSION},           {"abi", EBB_ABI},
          {"model", provenance.model},        {"manifest", provenance.manifest},
          {"seed", settings.sampling.seed},   {"request", digest_text(digest)},
          {"max_tokens", settings.max_tokens}};
}

ordered_json swap_json(const std::optional<SwapCounters>& counters) {
  ordered_json object;  // null
  for (const SwapField& field : kSwapFields) {
    if (counters) object[field.name] = *counters.*field.value;
  }
  return object;
}

ordered_json memory_json(const std::optional<MemoryCounters>& counters) {
  ordered_json object;  // null
  for (const MemoryField& field : kMemoryFields) {
    if (counters) object[field.name] = *counters.*field.value;
  }
  return object;
}

void add_once(std::vector<std::string>& names, std::string name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
}

// Whether a torn line can have been one of ours: what is cut off must not be somebody's only copy.
// What is whole JSON is not torn.
bool may_begin_a_result(std::string_view line) {
  constexpr std::string_view kStart = R"({"id":")";
  return line.substr(0, kStart.size()) == kStart.substr(0, line.size()) && !parse_json(line);
}

}  // namespace

std::string digest_text(std::uint64_t digest) { return fmt::format("{:016x}", digest); }

std::string format_result(const Job& job, const Generation& generation, const Timings& timings,
                          bool has_text, const Provenance& provenance) {
  const auto n_prompt = static_cast<std::int64_t>(job.prompt.size());
  const auto n_tokens = static_cast<std::int64_t>(generation.tokens().size());
  ordered_json line;
  line["id"] = job.id;
  line["text"] = has_text ? ordered_json(generation.text()) : ordered_json(nullptr);
  line["tokens"] = generation.tokens();
  line["finish_reason"] = finish_reason_name(generation.finish());
  line["usage"] = {{"prompt_tokens", n_prompt},
                   {"completion_tokens", n_tokens},
                   {"total_tokens", n_prompt + n_tokens},
                   {"prompt_tokens_details", {{"cached_tokens", timings.n_reused}}}};
  line["timings"] = {{"queue_s", timings.queue},
                     {"prefill_s", timings.prefill},
                     {"decode_s", timings.decode},
                     {"prefill_tokens_per_s", rate(n_prompt - timings.n_reused, timings.prefill)},
                     {"decode_tokens_per_s", rate(n_tokens - 1, timings.decode)}};
  line["swap"] = swap_json(timings.swap);
  line["memory"] = memory_json(timings.memory);
  line["error"] = nullptr;
  line["provenance"] = provenance_json(provenance, job.settings, job.digest);
  return to_line(line);
}

std::string format_failure(const std::string& id, const Error& error,
                           const GenerationSettings& settings, std::uint64_t digest,
                           const Provenance& provenance) {
  ordered_json line;
  line["id"] = id;
  line["text"] = nullptr;
  line["tokens"] = ordered_json::array();
  line["finish_reason"] = nullptr;
  line["usage"] = nullptr;
  line["timings"] = nullptr;
  line["swap"] = nullptr;
  line["memory"] = nullptr;
  line["error"] = {{"code", errc_name(error.code)}, {"message", error.message}};
  line["provenance"] = provenance_json(provenance, settings, digest);
  return to_line(line);
}

ResultsFile::ResultsFile(ResultsFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      is_new_(other.is_new_),
      answered_(std::move(other.answered_)),
      models_(std::move(other.models_)),
      manifests_(std::move(other.manifests_)),
      n_failed_(other.n_failed_) {}

ResultsFile::~ResultsFile() {
  if (descriptor_ < 0) return;
  struct stat facts = {};
  if (is_new_ && ::fstat(descriptor_, &facts) == 0 && facts.st_size == 0) ::unlink(path_.c_str());
  ::close(descriptor_);
}

Result<ResultsFile> ResultsFile::open(const std::string& path, bool resume) {
  ResultsFile file;
  file.path_ = path;
  EBB_TRY(file.lock(path));
  struct stat facts = {};
  if (::fstat(file.descriptor_, &facts) != 0) return system_error(path, "read", Errc::io);
  if (!S_ISREG(facts.st_mode)) {
    return make_error(Errc::invalid_argument, "%s: not a regular file", printable(path).c_str());
  }
  if (facts.st_size > 0 && !resume) {
    return make_error(Errc::invalid_argument,
                      "%s: has results already: name another file, or go on with --resume",
                      printable(path).c_str());
  }
  if (facts.st_size > 0) EBB_TRY(file.recover());
  return file;
}

// Between opening and locking, the holder of the lock may have removed the name: then the lock is
// on a file that nobody will find, and we start over.
Status ResultsFile::lock(const std::string& path) {
  for (;;) {
    // Only who made the name may take it away again. O_NONBLOCK: a FIFO must not hang us before we
    // can refuse it.
    constexpr int kFlags = O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK;
    descriptor_ = ::open(path.c_str(), kFlags | O_EXCL, 0666);
    is_new_ = descriptor_ >= 0;
    if (!is_new_ && errno == EEXIST) descriptor_ = ::open(path.c_str(), kFlags, 0666);
    if (descriptor_ < 0) return open_error(path);
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      is_new_ = false;
      if (errno != EWOULDBLOCK) return system_error(path, "lock", Errc::io);
      return make_error(Errc::invalid_argument, "%s: another run is writing to it",
                        printable(path).c_str());
    }
    if (is_named(descriptor_, path)) {
      if (is_new_) sync_folder_of(path);
      return ok_status();
    }
    is_new_ = false;
    ::close(std::exchange(descriptor_, -1));
  }
}

Status ResultsFile::recover() {
  EBB_ASSIGN(const std::string text, read_file(path_));
  std::size_t begin = 0;
  for (std::size_t number = 1; begin < text.size(); ++number) {
    const std::size_t end = text.find('\n', begin);
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    const Status status = read_line(line, number);
    if (end == text.npos) {
      if (status) return append("\n");
      if (!may_begin_a_result(line)) return status;
      if (::ftruncate(descriptor_, static_cast<off_t>(begin)) != 0 || ::fsync(descriptor_) != 0) {
        return system_error(path_, "cut off the torn last line", Errc::io);
      }
      return ok_status();
    }
    if (!status) return status;
    begin = end + 1;
  }
  return ok_status();
}

Status ResultsFile::read_line(std::string_view line, std::size_t number) {
  const Result<nlohmann::json> parsed = parse_json(line);
  const auto field = [&parsed](const char* key) {
    return parsed && parsed->is_object() ? parsed->value(key, nlohmann::json()) : nlohmann::json();
  };
  const nlohmann::json id = field("id");
  const nlohmann::json provenance = field("provenance");
  if (!id.is_string() || !field("tokens").is_array() || !provenance.is_object()) {
    return make_error(Errc::invalid_argument, "%s:%zu: no result of a run",
                      printable(path_).c_str(), number);
  }
  const auto name = [&provenance](const char* key) {
    const auto found = provenance.find(key);
    return found != provenance.end() && found->is_string() ? found->get<std::string>() : "";
  };
  const auto length = provenance.find("max_tokens");
  const bool has_length = length != provenance.end() && length->is_number_integer();
  const Answered answered{name("request"), has_length ? length->get<std::int64_t>() : -1};
  if (!answered_.emplace(id.get<std::string>(), answered).second) {
    return make_error(Errc::invalid_argument, "%s:%zu: id %s stands in an earlier line too",
                      printable(path_).c_str(), number,
                      printable(id.get<std::string>(), 60).c_str());
  }
  if (!field("error").is_null()) ++n_failed_;
  add_once(models_, name("model"));
  add_once(manifests_, name("manifest"));
  return ok_status();
}

Status ResultsFile::append(std::string_view line) {
  is_new_ = false;
  EBB_TRY(write_all(descriptor_, std::as_bytes(std::span(line)), path_));
  if (::fsync(descriptor_) != 0) return system_error(path_, "write", Errc::io);
  return ok_status();
}

}  // namespace ebb::cli
