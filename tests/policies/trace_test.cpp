#define BOOST_TEST_MODULE policies_trace
#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>

#include "tests/core/support.h"
#include "tools/trace/reader.h"
#include "tools/trace/writer.h"

namespace ebb::test {
namespace {

using trace::Counter;
using trace::Header;
using trace::Kind;
using trace::Reader;
using trace::Record;
using trace::Writer;

Header small_header() {
  Header header;
  header.n_layers = 3;
  header.max_open = 3;
  header.max_decode = 2;
  header.max_rows = 64;
  header.top_k = 16;
  header.ratio = 4;
  header.max_context = 100000;
  header.row_bytes = 584;
  header.slots = 32;
  header.staging = 1;
  header.keys = "sink_tokens = 4\n";
  header.policy = "swap_lru";
  header.model = "0123456789abcdef";
  header.manifest = "fedcba";
  return header;
}

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// One line per record.
std::string show(const Record& record) {
  std::ostringstream line;
  line << static_cast<int>(record.kind) << ":";
  switch (record.kind) {
    case Kind::open:
    case Kind::close:
      line << record.sequence;
      break;
    case Kind::step:
      for (const auto& run : record.runs) {
        line << " " << run.sequence << "@" << run.first_pos << "+" << run.n_rows;
      }
      break;
    case Kind::selected:
      line << record.sequence << "/" << record.layer << "/" << record.row;
      for (const std::int32_t id : record.ids) line << " " << id;
      break;
    case Kind::scored:
      line << record.sequence;
      for (const float score : record.scores) line << " " << std::hexfloat << score;
      for (const std::int32_t id : record.ids) line << " kept " << id;
      break;
    case Kind::settled:
      break;
    case Kind::filled:
      line << record.sequence << "=" << record.n_tokens;
      break;
    case Kind::end:
      for (const Counter& counter : record.counters) {
        line << " " << counter.name << "=" << counter.value;
      }
  }
  return line.str();
}

struct Read {
  std::vector<std::string> records;
  std::string error, torn;
};

Read read_trace(const std::string& path, bool recover = false) {
  Read all;
  Result<Reader> reader = Reader::open(path, recover);
  if (!reader) {
    all.error = reader.error().message;
    return all;
  }
  for (;;) {
    Result<const Record*> record = reader->next();
    if (!record) {
      all.error = record.error().message;
      break;
    }
    if (*record == nullptr) break;
    all.records.push_back(show(**record));
  }
  all.torn = reader->torn();
  return all;
}

/// Writes a run of two sequences, `n_steps` decode steps; returns its records as show() has them.
std::vector<std::string> write_trace(const std::string& path, int n_steps, bool is_ended = true) {
  std::mt19937 random(3);
  std::vector<std::string> records;
  Result<Writer> made = Writer::create(path, small_header());
  BOOST_REQUIRE(made);
  Writer& writer = *made;
  const auto note = [&](const Status& status, Record record) {
    BOOST_REQUIRE(status);
    records.push_back(show(record));
  };
  std::int32_t length[2] = {0, 0};
  for (std::int32_t s = 0; s < 2; ++s) {
    note(writer.open(s), {.kind = Kind::open, .sequence = s});
    std::vector<std::int32_t> pos, seq;
    for (; length[s] < 64; ++length[s]) {
      pos.push_back(length[s]);
      seq.push_back(s);
    }
    note(writer.step(pos, seq), {.kind = Kind::step, .runs = {{s, 0, 64}}});
  }
  for (int t = 0; t < n_steps; ++t) {
    const std::int32_t pos[2] = {length[0]++, length[1]++}, seq[2] = {0, 1};
    note(writer.step(pos, seq), {.kind = Kind::step, .runs = {{0, pos[0], 1}, {1, pos[1], 1}}});
    for (std::int32_t layer = 0; layer < 3; ++layer) {
      for (std::int32_t row = 0; row < 2; ++row) {
        std::vector<std::int32_t> ids;
        for (std::int32_t c = 0; c < (pos[row] + 1) / 4 && ids.size() < 16; ++c) {
          if (random() % 3 == 0) ids.push_back(c);
        }
        std::vector<std::int32_t> shuffled = ids;
        std::shuffle(shuffled.begin(), shuffled.end(), random);
        note(writer.selected(layer, row, shuffled),
             {.kind = Kind::selected, .sequence = row, .layer = layer, .row = row, .ids = ids});
      }
    }
    if (t % 64 == 5) {
      const std::vector<float> scores = {0.5f, -std::numeric_limits<float>::infinity(), 1e-40f,
                                         -0.f, static_cast<float>(t)};
      const std::vector<std::int32_t> kept = {0, 3, 4};
      note(writer.scored(1, scores, kept),
           {.kind = Kind::scored, .sequence = 1, .ids = kept, .scores = scores});
      note(writer.settled(), {.kind = Kind::settled});
    }
  }
  note(writer.close(0), {.kind = Kind::close, .sequence = 0});
  note(writer.open(2), {.kind = Kind::open, .sequence = 2});
  note(writer.filled(2, 40), {.kind = Kind::filled, .sequence = 2, .n_tokens = 40});
  const std::int32_t after[1] = {40}, third[1] = {2};
  note(writer.step(after, third), {.kind = Kind::step, .runs = {{2, 40, 1}}});
  if (is_ended) {
    const std::vector<Counter> counters = {{"hits", 12}, {"misses", ~std::uint64_t{0}}};
    note(writer.end(counters), {.kind = Kind::end, .counters = counters});
  }
  return records;
}

BOOST_AUTO_TEST_CASE(what_was_written_is_read) {
  const TempFolder folder;
  const std::vector<std::string> written = write_trace(folder / "a.trace", 3000);
  const Read read = read_trace(folder / "a.trace");
  BOOST_TEST(read.error == "");
  BOOST_TEST(read.torn == "");
  BOOST_TEST(read.records == written, boost::test_tools::per_element());
  Result<Reader> reader = Reader::open(folder / "a.trace", false);
  BOOST_REQUIRE(reader);
  const Header header = reader->header(), wanted = small_header();
  BOOST_TEST(header.n_layers == wanted.n_layers);
  BOOST_TEST(header.max_open == wanted.max_open);
  BOOST_TEST(header.max_decode == wanted.max_decode);
  BOOST_TEST(header.max_rows == wanted.max_rows);
  BOOST_TEST(header.top_k == wanted.top_k);
  BOOST_TEST(header.ratio == wanted.ratio);
  BOOST_TEST(header.max_context == wanted.max_context);
  BOOST_TEST(header.n_chunks() == 25000u);
  BOOST_TEST(header.row_bytes == wanted.row_bytes);
  BOOST_TEST(header.slots == wanted.slots);
  BOOST_TEST(header.staging == wanted.staging);
  BOOST_TEST(header.keys == wanted.keys);
  BOOST_TEST(header.policy == wanted.policy);
  BOOST_TEST(header.model == wanted.model);
  BOOST_TEST(header.manifest == wanted.manifest);
}

BOOST_AUTO_TEST_CASE(the_layout_on_disk_is_the_documented_one) {
  const TempFolder folder;
  Header header = small_header();
  header.policy = "p";
  header.keys = header.model = header.manifest = "";
  {
    Result<Writer> writer = Writer::create(folder / "a.trace", header);
    BOOST_REQUIRE(writer);
    BOOST_REQUIRE(writer->open(1));
    BOOST_REQUIRE(writer->end({}));
  }
  const std::string bytes = read_all(folder / "a.trace");
  const std::string head = bytes.substr(0, 16);
  BOOST_TEST(head == std::string("EBBTRACE\3\0\0\0", 12) + std::string("\x49\0\0\0", 4));
  BOOST_REQUIRE_EQUAL(bytes.size(), 73u + 16u + 4u);
  BOOST_TEST(bytes.substr(73, 12) == std::string("EBBK\4\0\0\0\2\0\0\0", 12));
  BOOST_TEST(bytes.substr(89) == std::string("\1\1\7\0", 4));
  // The check value of CRC-32.
  const std::string digits = "123456789";
  BOOST_TEST(trace::crc32(std::as_bytes(std::span(digits))) == 0xcbf43926u);
}

BOOST_AUTO_TEST_CASE(a_trace_that_was_not_ended_is_refused_and_can_be_recovered) {
  const TempFolder folder;
  const std::vector<std::string> written = write_trace(folder / "a.trace", 3000, false);
  const Read refused = read_trace(folder / "a.trace");
  BOOST_TEST(refused.error.find("was not ended") != std::string::npos, refused.error);
  const Read read = read_trace(folder / "a.trace", true);
  BOOST_TEST(read.error == "");
  BOOST_TEST(read.torn != "");
  // What the writer had not yet handed to the system is lost, nothing before that.
  BOOST_REQUIRE(!read.records.empty());
  BOOST_REQUIRE_LT(read.records.size(), written.size());
  BOOST_TEST(std::equal(read.records.begin(), read.records.end(), written.begin()));
}

BOOST_AUTO_TEST_CASE(a_trace_cut_at_any_byte_gives_all_whole_blocks_before_the_cut) {
  const TempFolder folder;
  const std::vector<std::string> written = write_trace(folder / "a.trace", 3000);
  const std::string bytes = read_all(folder / "a.trace");
  std::size_t header = static_cast<unsigned char>(bytes[12]);
  std::mt19937 random(9);
  std::size_t last = 0;
  for (std::size_t cut = header; cut < bytes.size(); cut += 1 + random() % 4000) {
    folder.write("b.trace", std::string_view(bytes).substr(0, cut));
    const Read refused = read_trace(folder / "b.trace");
    BOOST_TEST(refused.error.find("at byte ") != std::string::npos, refused.error);
    const Read read = read_trace(folder / "b.trace", true);
    BOOST_TEST(read.error == "");
    BOOST_TEST(read.torn != "");
    BOOST_TEST(read.records.size() >= last);
    last = read.records.size();
    BOOST_TEST(std::equal(read.records.begin(), read.records.end(), written.begin()));
  }
  for (std::size_t cut = 0; cut < header; cut += 5) {
    folder.write("b.trace", std::string_view(bytes).substr(0, cut));
    BOOST_TEST(read_trace(folder / "b.trace", true).error.find("at byte ") != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(a_changed_byte_is_found_wherever_it_is) {
  const TempFolder folder;
  const std::vector<std::string> written = write_trace(folder / "a.trace", 1500);
  const std::string bytes = read_all(folder / "a.trace");
  std::mt19937 random(10);
  for (int round = 0; round < 400; ++round) {
    std::string changed = bytes;
    const std::size_t at = round < 200 ? static_cast<std::size_t>(round) : random() % bytes.size();
    changed[at] = static_cast<char>(changed[at] ^ (1 << random() % 8));
    folder.write("b.trace", changed);
    BOOST_TEST(read_trace(folder / "b.trace").error != "", "byte " << at);
    // Recovering never hands out anything that was not written.
    const Read read = read_trace(folder / "b.trace", true);
    BOOST_TEST(std::equal(read.records.begin(), read.records.end(), written.begin()));
  }
}

BOOST_AUTO_TEST_CASE(foreign_files_are_refused) {
  const TempFolder folder;
  folder.write("empty", "");
  folder.write("text", "This is a text of more than sixteen bytes.");
  folder.write("gguf", std::string("GGUF\3\0\0\0", 8) + std::string(100, '\0'));
  for (const char* name : {"empty", "text", "gguf"}) {
    BOOST_TEST(read_trace(folder / name, true).error.find("no trace") != std::string::npos);
    BOOST_TEST(!trace::is_trace(folder / name));
  }
  write_trace(folder / "a.trace", 1);
  BOOST_TEST(trace::is_trace(folder / "a.trace"));
  std::string bytes = read_all(folder / "a.trace");
  bytes[8] = 4;
  folder.write("new", bytes);
  BOOST_TEST(read_trace(folder / "new").error.find("version 4") != std::string::npos);
  bytes[8] = 3;
  folder.write("more", bytes + "x");
  BOOST_TEST(read_trace(folder / "more").error.find("goes on after its end") != std::string::npos);
  BOOST_TEST(read_trace(folder / "none").error.find("cannot open") != std::string::npos);
  BOOST_TEST(!Writer::create(folder / "no/such/folder", small_header()));
}

// Scores without the chunks that they kept.
BOOST_AUTO_TEST_CASE(version_1_is_read) {
  const TempFolder folder;
  {
    Result<Writer> writer = Writer::create(folder / "a.trace", small_header());
    BOOST_REQUIRE(writer);
    BOOST_REQUIRE(writer->open(1));
    const float scores[2] = {0.5F, -2};
    BOOST_REQUIRE(writer->scored(1, scores, {}));
    BOOST_REQUIRE(writer->end({}));
  }
  std::string bytes = read_all(folder / "a.trace");
  const auto seal = [&](std::size_t at, std::uint32_t crc) {
    for (int i = 0; i < 4; ++i)
      bytes[at + static_cast<std::size_t>(i)] = static_cast<char>(crc >> 8 * i);
  };
  const auto crc = [&](std::size_t from, std::size_t n, std::size_t then, std::size_t m) {
    const auto all = std::as_bytes(std::span(bytes));
    return trace::crc32(all.subspan(from, n), all.subspan(then, m));
  };
  const std::size_t header = static_cast<unsigned char>(bytes[12]);
  bytes[8] = 1;
  seal(header - 4, crc(0, header - 4, 0, 0));
  // The record ends with the number of kept chunks; `end` follows it with two bytes.
  BOOST_REQUIRE_EQUAL(bytes[bytes.size() - 3], 0);
  bytes.erase(bytes.size() - 3, 1);
  --bytes[header + 4];
  seal(header + 12, crc(header + 4, 8, header + 16, bytes.size() - header - 16));
  folder.write("b.trace", bytes);
  const Read read = read_trace(folder / "b.trace");
  BOOST_TEST(read.error == "");
  BOOST_REQUIRE_EQUAL(read.records.size(), 3U);
  BOOST_TEST(read.records[1] == show({.kind = Kind::scored, .sequence = 1, .scores = {0.5F, -2}}));
  Result<Reader> reader = Reader::open(folder / "b.trace", false);
  BOOST_TEST(reader->header().version == 1U);
  BOOST_TEST(reader->header().max_decode == small_header().max_open);
}

// A block that matches its CRC but says what no run can have done.
BOOST_AUTO_TEST_CASE(records_of_a_wrong_writer_are_refused) {
  const TempFolder folder;
  const std::int32_t pos[1] = {0}, seq[1] = {0}, far[1] = {7}, other[1] = {1};
  const std::int32_t ids[1] = {3};
  const auto refused = [&](const char* why, const auto& write) {
    {
      Result<Writer> writer = Writer::create(folder / "a.trace", small_header());
      BOOST_REQUIRE(writer);
      write(*writer);
      BOOST_REQUIRE(writer->end({}));
    }
    const std::string error = read_trace(folder / "a.trace", true).error;
    BOOST_TEST(error.find(why) != std::string::npos, error);
  };
  refused("sequence 0 is not open", [&](Writer& w) { (void)w.step(pos, seq); });
  refused("sequence 0 is open already", [&](Writer& w) {
    (void)w.open(0);
    (void)w.open(0);
  });
  refused("sequence = 3: want 0..2", [&](Writer& w) { (void)w.open(3); });
  refused("position = 7: want 0..0", [&](Writer& w) {
    (void)w.open(0);
    (void)w.step(far, seq);
  });
  refused("position = 0: want 7..7", [&](Writer& w) {
    (void)w.open(0);
    (void)w.filled(0, 7);
    (void)w.step(pos, seq);
  });
  refused("a sequence is filled that is not empty", [&](Writer& w) {
    (void)w.open(0);
    (void)w.step(pos, seq);
    (void)w.filled(0, 7);
  });
  refused("tokens = 100001: want 0..100000", [&](Writer& w) {
    (void)w.open(0);
    (void)w.filled(0, 100001);
  });
  refused("sequence 1 is not open", [&](Writer& w) { (void)w.filled(1, 7); });
  refused("row 0 is not in the step", [&](Writer& w) {
    (void)w.open(0);
    (void)w.selected(0, 0, {});
  });
  refused("layer = 3: want 0..2", [&](Writer& w) {
    (void)w.open(0);
    (void)w.step(pos, seq);
    (void)w.selected(3, 0, {});
  });
  refused("count = 1: want 0..0", [&](Writer& w) {
    (void)w.open(0);
    (void)w.step(pos, seq);
    (void)w.selected(0, 0, ids);
  });
  refused("gap of ids = 2: want 0..1", [&](Writer& w) {
    const float scores[2] = {1, 2};
    const std::int32_t kept[1] = {2};
    (void)w.open(0);
    (void)w.scored(0, scores, kept);
  });
  refused("kept = 3: want 0..2", [&](Writer& w) {
    const float scores[2] = {1, 2};
    const std::int32_t kept[3] = {0, 1, 2};
    (void)w.open(0);
    (void)w.scored(0, scores, kept);
  });
  refused("sequence 1 is not open", [&](Writer& w) {
    (void)w.open(0);
    (void)w.step(pos, other);
  });
}

}  // namespace
}  // namespace ebb::test
