// Recorded selections take the place of the indexer's in decode: what is logged is what the file
// says, and files that are none are refused.

#define BOOST_TEST_MODULE recorded_selections
#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <cstring>
#include <span>

#include "tests/core/support.h"
#include "tests/engine/harness.h"
#include "tools/trace/recorded_selections.h"
#include "tools/trace/writer.h"

namespace {

using ebb::StepRow;
using ebb::test::open_engine;
using ebb::test::require;
using ebb::test::synthetic_manifest;
using ebb::test::TempFolder;
using Ids = std::vector<std::int32_t>;
using Overrides = std::vector<std::string>;

constexpr std::uint32_t kLayers = 2, kSteps = 5, kTopK = 8;

/// Row of layer and step: `step + 1` chunks from `layer` on, two apart.
Ids chosen(std::uint32_t layer, std::uint32_t step) {
  Ids ids;
  for (std::uint32_t i = 0; i <= step; ++i) ids.push_back(static_cast<std::int32_t>(layer + 2 * i));
  return ids;
}

std::string file_text() {
  std::string text = "EBBSELS1";
  const auto put = [&text](std::int32_t value) {
    char bytes[4];
    std::memcpy(bytes, &value, 4);
    text.append(bytes, 4);
  };
  put(kLayers);
  put(kSteps);
  put(kTopK);
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      Ids ids = chosen(layer, step);
      ids.resize(kTopK);
      for (const std::int32_t id : ids) put(id);
    }
  }
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    for (std::uint32_t step = 0; step < kSteps; ++step) put(static_cast<std::int32_t>(step + 1));
  }
  return text;
}

Overrides with(const std::string& path) {
  return {"engine.max_context=200", "engine.prefill_chunk=64", "swap.module=swap_lru",
          "swap.staging=zero_copy", "swap.slots=12",           "attention.selections=" + path};
}

/// A prompt of 42 tokens and three steps of one row.
void write_trace(const std::string& trace, std::uint64_t max_context) {
  ebb::trace::Header header;
  header.n_layers = 1;
  header.max_open = 1;
  header.max_rows = 64;
  header.top_k = 4;
  header.ratio = 4;
  header.max_context = max_context;
  header.row_bytes = 8;
  header.slots = 6;
  header.staging = 2;
  header.policy = "swap_lru";
  ebb::trace::Writer writer = require(ebb::trace::Writer::create(trace, header));
  require(writer.open(0));
  Ids prompt(42), sequence(42, 0);
  for (std::int32_t i = 0; i < 42; ++i) prompt[static_cast<std::size_t>(i)] = i;
  require(writer.step(prompt, sequence));
  const std::vector<Ids> rows = {{1, 5}, {1, 9, 10}, {2, 5, 10}};
  for (std::int32_t i = 0; i < 3; ++i) {
    const Ids pos{42 + i}, seq{0};
    require(writer.step(pos, seq));
    require(writer.selected(0, 0, rows[static_cast<std::size_t>(i)]));
  }
  require(writer.close(0));
  require(writer.end({}));
}

}  // namespace

BOOST_FIXTURE_TEST_CASE(decode_selects_what_the_file_says, TempFolder) {
  const std::string path = write("a.selections", file_text());
  const auto engine = open_engine(synthetic_manifest(), with(path));
  const std::int32_t sequence = require(engine->open_sequence());
  require(ebb::cli::prefill(*engine, sequence, Ids(100, 7)));
  for (std::int32_t pos = 100; pos < 120; ++pos) {
    const StepRow row{sequence, pos, true};
    require(engine->step({&row, 1}));
    require(engine->argmax(0));  // waits for the step
    for (std::int32_t layer = 0; layer < engine->swap()->layout().n_layers; ++layer) {
      const ebb::SelectionLog log = engine->swap()->log(layer);
      const Ids want = chosen(static_cast<std::uint32_t>(layer) % kLayers,
                              static_cast<std::uint32_t>(pos) % kSteps);
      BOOST_TEST(Ids(log.ids, log.ids + log.count[0]) == want, boost::test_tools::per_element());
    }
  }
}

BOOST_FIXTURE_TEST_CASE(what_is_no_such_file_is_refused, TempFolder) {
  const std::string path = *this / "a.selections";
  const auto refusal = [&] {
    try {
      open_engine(synthetic_manifest(), with(path));
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto expect = [&](const std::string& part) {
    const std::string text = refusal();
    BOOST_TEST(text.find(part) != text.npos, "\"" << part << "\" is not in: " << text);
  };
  expect("cannot be read");
  const std::string good = file_text();
  for (const std::size_t n : {std::size_t{0}, std::size_t{19}}) {
    write("a.selections", good.substr(0, n));
    expect("too short");
  }
  write("a.selections", good.substr(0, good.size() - 1));
  expect("its size is not that of its header");
  write("a.selections", good + "x");
  expect("its size is not that of its header");
  const auto changed = [&good](std::size_t at, std::int32_t value) {
    std::string text = good;
    std::memcpy(text.data() + at, &value, 4);
    return text;
  };
  write("a.selections", "X" + good.substr(1));
  expect("no file of selections");
  write("a.selections", changed(16, 9));
  expect("rows of 9 chunks; the model selects 8");
  for (const std::int32_t n : {0, -1, 1 << 30}) {
    write("a.selections", changed(8, n));
    expect("a size that cannot be");
  }
  write("a.selections", changed(good.size() - 4, 9));
  expect("a count beyond the row");
  write("a.selections", changed(20, -1));
  expect("a negative chunk");
  // The second row's first is no less than its second.
  write("a.selections", changed(20 + 4 * kTopK, 2));
  expect("do not ascend");
  write("a.selections", changed(20 + 4 * kTopK + 4, 50));
  expect("chunk 50; max_context has 50");
}

BOOST_FIXTURE_TEST_CASE(an_export_of_more_than_a_file_holds_is_refused, TempFolder) {
  const std::string trace = *this / "t.trace";
  std::string bytes;
  const ebb::trace::Put put = [&bytes](std::span<const std::byte> more) {
    bytes.append(reinterpret_cast<const char*>(more.data()), more.size());
    return ebb::ok_status();
  };
  write_trace(trace, 1 << 22);  // 2^20 chunks
  for (const std::int32_t spread : {2048, 4096}) {
    const auto size = ebb::trace::export_selections(trace, spread, false, put);
    BOOST_TEST_REQUIRE(!size.has_value());
    BOOST_TEST((size.error().code == ebb::Errc::invalid_argument));
    BOOST_TEST(size.error().message.find("spread them less") != std::string::npos);
    BOOST_TEST(bytes.empty());
  }
  BOOST_TEST(ebb::trace::export_selections(trace, 1024, false, put).has_value());
}

BOOST_FIXTURE_TEST_CASE(an_export_spreads_chunks_and_goes_back_and_forth, TempFolder) {
  const std::string trace = *this / "t.trace";
  std::string bytes;
  const ebb::trace::Put put = [&bytes](std::span<const std::byte> more) {
    bytes.append(reinterpret_cast<const char*>(more.data()), more.size());
    return ebb::ok_status();
  };
  write_trace(trace, 200);
  const auto size = require(ebb::trace::export_selections(trace, 2, false, put));
  BOOST_TEST(size.n_layers == 1U);
  BOOST_TEST(size.n_steps == 4U);
  BOOST_TEST(size.top_k == 8U);
  BOOST_REQUIRE(bytes.size() == 20U + 4 * 4 * 9);
  const auto at = [&bytes](std::size_t i) {
    std::int32_t value;
    std::memcpy(&value, bytes.data() + 20 + 4 * i, 4);
    return value;
  };
  // In the first step 43 tokens are 10 chunks: chunk 10 is the steps' own.
  const std::vector<Ids> want = {
      {2, 3, 10, 11}, {2, 3, 18, 19, 20}, {4, 5, 10, 11, 20}, {2, 3, 18, 19, 20}};
  for (std::size_t step = 0; step < 4; ++step) {
    BOOST_TEST(at(32 + step) == static_cast<std::int32_t>(want[step].size()));
    for (std::size_t i = 0; i < want[step].size(); ++i) {
      BOOST_TEST(at(8 * step + i) == want[step][i]);
    }
  }
}
