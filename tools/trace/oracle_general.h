#pragma once

#include <cstdint>
#include <string>

#include "core/api/result.h"
#include "tools/trace/put.h"

namespace ebb::trace {

/// Writes a trace's selections as libCacheSim's oracleGeneral: 24 bytes each, little-endian,
///   u32 time, u64 object, u32 size, i64 number of the record that asks for the object next
/// The time is the step, counted from 1; the object is sequence opening << 48 | layer << 32 |
/// chunk, sequence openings counted from 1; the size is the bytes of a row; records count from 1,
/// and -1 means never again. Each chunk stands once per step, layer and sequence, ascending. Chunks
/// get a slot as they are completed, before the step selects: `with_births`, that is a record too,
/// the first of every object, but for what a sequence was copied with: that begins without a slot.
/// Without, a simulator meets all of them first when they are selected.
/// Holds 24 bytes per record in memory. Returns the number of records.
/// Source of the layout: libCacheSim, oracleGeneralBin.h.
Result<std::uint64_t> export_oracle_general(const std::string& trace, bool recover,
                                            bool with_births, const Put& put);

}  // namespace ebb::trace
