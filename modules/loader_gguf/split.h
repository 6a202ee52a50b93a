#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/api/result.h"
#include "modules/loader_gguf/gguf_file.h"

namespace ebb::gguf {

/// A file name as splitting tools write it: STEM-00001-of-00003.gguf.
struct PartName {
  std::string stem;
  std::int64_t part = 0;  ///< from 1
  std::int64_t parts = 0;

  /// The path of part `number` (from 1) of the same model.
  std::string path_of(std::int64_t number) const;
};

std::optional<PartName> parse_part_name(std::string_view path);

/// What a file's own keys say about its place in a split model.
struct PartKeys {
  std::int64_t part = 1;      ///< from 1; the key split.no counts from 0
  std::int64_t parts = 1;     ///< 1 for a model in one file
  std::int64_t tensors = -1;  ///< of all parts together; -1 if not stated
};

/// Reads split.no, split.count and split.tensors.count. Errors: invalid_argument.
Result<PartKeys> read_part_keys(const std::string& label, const Contents& contents);

/// Checks the file that the user named. Returns its parsed name if the model has several parts, and
/// nothing if it has one. Errors: invalid_argument if it is not the first part or if keys and name
/// do not agree.
Result<std::optional<PartName>> check_first_part(const std::string& label, std::string_view path,
                                                 const Contents& contents, const PartKeys& keys);

/// Checks a later part against the first one. Keys it repeats must have equal values; a part has
/// its own alignment.
Status check_later_part(const std::string& label, const Contents& contents, std::int64_t number,
                        const PartKeys& first_keys, const Contents& first);

}  // namespace ebb::gguf
