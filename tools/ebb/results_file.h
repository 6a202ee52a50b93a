#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/api/result.h"
#include "tools/ebb/generation.h"
#include "tools/ebb/scheduler.h"

namespace ebb::cli {

/// What all results of a run have in common.
struct Provenance {
  std::string model;     ///< Loader::digest
  std::string manifest;  ///< Manifest::hash
};

/// A request's digest as results spell it.
std::string digest_text(std::uint64_t digest);

/// One line of results. A failed request has an error, no text, tokens or finish_reason.
std::string format_result(const Job& job, const Generation& generation, const Timings& timings,
                          bool has_text, const Provenance& provenance);
std::string format_failure(const std::string& id, const Error& error,
                           const GenerationSettings& settings, std::uint64_t digest,
                           const Provenance& provenance);

/// A file of results, locked while open: one line per finished request, on disk when append()
/// returns. A run that is killed leaves whole lines and at most one torn one at the end, which
/// opening for resume cuts off; a last line that only lacks its line feed gets it.
class ResultsFile {
 public:
  /// Without `resume`, the file must be absent or empty.
  /// Errors: invalid_argument if another process holds it, if it is not empty, or if a line of it
  /// is no result; io.
  static Result<ResultsFile> open(const std::string& path, bool resume);
  ResultsFile(ResultsFile&& other) noexcept;
  ResultsFile& operator=(ResultsFile&&) = delete;
  /// Removes the file if this object created it and nothing was appended.
  ~ResultsFile();

  Status append(std::string_view line);

  /// What a line says of the request that it answers.
  struct Answered {
    std::string digest;            ///< "" if the line does not say
    std::int64_t max_tokens = -1;  ///< -1 likewise
  };
  /// Of the lines that were there at opening, by id.
  const std::unordered_map<std::string, Answered>& answered() const { return answered_; }
  int n_failed() const { return n_failed_; }
  /// Models and manifests they name, each once, in order.
  const std::vector<std::string>& models() const { return models_; }
  const std::vector<std::string>& manifests() const { return manifests_; }

 private:
  ResultsFile() = default;
  Status lock(const std::string& path);
  Status recover();
  Status read_line(std::string_view line, std::size_t number);

  std::string path_;
  int descriptor_ = -1;
  bool is_new_ = false;
  std::unordered_map<std::string, Answered> answered_;
  std::vector<std::string> models_, manifests_;
  int n_failed_ = 0;
};

}  // namespace ebb::cli
