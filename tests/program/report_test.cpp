// What is shown and written around a run: progress, statistics, the file of results.

#include <sys/stat.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/program/letter_tokenizer.h"
#include "tools/ebb/exit_status.h"
#include "tools/ebb/output_file.h"
#include "tools/ebb/progress.h"
#include "tools/ebb/results_file.h"
#include "tools/ebb/session.h"
#include "tools/ebb/statistics.h"

using namespace ebb;
using namespace ebb::cli;
namespace fs = std::filesystem;

namespace {

struct Folder {
  Folder() {
    std::string name = (fs::temp_directory_path() / "ebb_report_XXXXXX").string();
    BOOST_REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
  std::string operator/(const char* name) const { return (path / name).string(); }
  fs::path path;
};

void put(const std::string& path, std::string_view content) {
  std::ofstream(path, std::ios::binary) << content;
}

std::string get(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::string result_line(const std::string& id) {
  return format_failure(id, Error{Errc::invalid_argument, "too long"}, {}, 0,
                        {"model", "manifest"});
}

std::string open_mistake(const std::string& path, bool resume) {
  const Result<ResultsFile> file = ResultsFile::open(path, resume);
  BOOST_REQUIRE(!file);
  BOOST_TEST(exit_status(file.error().code) == kBadInput);
  return file.error().message;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(report)

BOOST_AUTO_TEST_CASE(exit_statuses_follow_the_kind_of_error) {
  BOOST_TEST(exit_status(Errc::invalid_argument) == 2);
  BOOST_TEST(exit_status(Errc::not_found) == 2);
  BOOST_TEST(exit_status(Errc::incompatible) == 2);
  BOOST_TEST(exit_status(Errc::out_of_memory) == 3);
  BOOST_TEST(exit_status(Errc::device) == 4);
  BOOST_TEST(exit_status(Errc::io) == 4);
  BOOST_TEST(exit_status(Errc::internal) == 4);
}

BOOST_AUTO_TEST_CASE(durations_and_sizes_are_written_for_people) {
  BOOST_TEST(format_duration(0) == "0:00");
  BOOST_TEST(format_duration(59.6) == "1:00");
  BOOST_TEST(format_duration(3725) == "1:02:05");
  BOOST_TEST(format_bytes(1023) == "1023 B");
  BOOST_TEST(format_bytes(1024) == "1.00 KiB");
  BOOST_TEST(format_bytes(std::uint64_t{3} << 29) == "1.50 GiB");
}

BOOST_AUTO_TEST_CASE(the_drawn_line_has_a_bar_and_the_time_left) {
  Progress progress(4, 100, false);
  BOOST_TEST(progress.draw(0) == "[....................] 0/4 requests");
  progress.finished(20, "a stop");
  progress.feeding("b", 20, 512, 2048);
  // A quarter of the work took 10 s, so three quarters take 30 s.
  BOOST_TEST(progress.draw(10) ==
             "[#####...............] 1/4 requests, ETA 0:30, b: 512 of 2048 tokens");
  progress.feeding("a very long name", 20, 100000000, 400000000);
  BOOST_TEST(progress.draw(10).size() == 79u);
}

// Closed forms: 1/2 -+ z / (2 sqrt(n + z^2)) for one half right, n / (n + z^2) upwards for all.
BOOST_AUTO_TEST_CASE(wilson_intervals_have_known_values) {
  const double z2 = 3.841458820694124;
  const Interval half = wilson_interval(5, 10);
  BOOST_TEST(half.low == 0.5 - std::sqrt(z2) / (2 * std::sqrt(10 + z2)),
             boost::test_tools::tolerance(1e-12));
  BOOST_TEST(half.high == 1 - half.low, boost::test_tools::tolerance(1e-12));
  const Interval all = wilson_interval(12, 12);
  BOOST_TEST(all.low == 12 / (12 + z2), boost::test_tools::tolerance(1e-12));
  BOOST_TEST(all.high == 1.0, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(wilson_interval(0, 0).high == 1.0);
}

BOOST_AUTO_TEST_CASE(means_have_students_interval) {
  const std::vector<double> values{1, 2, 3, 4};
  const Mean mean = mean_of(values);
  BOOST_TEST(mean.value == 2.5);
  // 3.182446 is the 97.5 % point for three degrees of freedom, in any table.
  BOOST_TEST(mean.half_width == 3.182446 * std::sqrt(5.0 / 3 / 4),
             boost::test_tools::tolerance(1e-6));
  BOOST_TEST(mean_of(std::span(values).first(1)).half_width == 0);
}

BOOST_AUTO_TEST_CASE(results_hold_bytes_that_are_no_utf8_as_replacement) {
  const LetterTokenizer tokenizer;
  Generation generation({}, &tokenizer);
  BOOST_REQUIRE(generation.take(0xff));
  const std::string line = format_result({"a", {1}, {}}, generation, {}, true, {"m", "f"});
  BOOST_TEST(line.find("\"text\":\"\xef\xbf\xbd\"") != std::string::npos, line);
  BOOST_TEST(line.find("\"tokens\":[255]") != std::string::npos, line);
  BOOST_TEST(line.back() == '\n');
}

BOOST_AUTO_TEST_CASE(a_file_with_results_is_not_overwritten) {
  const Folder folder;
  put(folder / "r", result_line("a"));
  BOOST_TEST(open_mistake(folder / "r", false).find("--resume") != std::string::npos);
  BOOST_TEST(get(folder / "r") == result_line("a"));
}

BOOST_AUTO_TEST_CASE(an_output_that_got_nothing_is_removed_if_it_is_ours) {
  const Folder folder;
  { BOOST_TEST(ResultsFile::open(folder / "r", false).has_value()); }
  BOOST_TEST(!fs::exists(folder / "r"));
  put(folder / "r", "");
  { BOOST_TEST(ResultsFile::open(folder / "r", false).has_value()); }
  BOOST_TEST(fs::exists(folder / "r"));
}

BOOST_AUTO_TEST_CASE(two_runs_cannot_hold_one_output) {
  const Folder folder;
  const Result<ResultsFile> first = ResultsFile::open(folder / "r", false);
  BOOST_REQUIRE(first);
  BOOST_TEST(open_mistake(folder / "r", true).find("another run") != std::string::npos);
  BOOST_TEST(fs::exists(folder / "r"));
}

BOOST_AUTO_TEST_CASE(resume_knows_what_is_there) {
  const Folder folder;
  put(folder / "r", result_line("a") + result_line("b"));
  Result<ResultsFile> file = ResultsFile::open(folder / "r", true);
  BOOST_REQUIRE(file);
  BOOST_TEST(file->answered().size() == 2u);
  BOOST_TEST(file->answered().contains("b"));
  BOOST_TEST(file->n_failed() == 2);
  BOOST_TEST(file->models() == (std::vector<std::string>{"model"}),
             boost::test_tools::per_element());
  BOOST_REQUIRE(file->append(result_line("c")));
  BOOST_TEST(get(folder / "r") == result_line("a") + result_line("b") + result_line("c"));
}

BOOST_AUTO_TEST_CASE(resume_repairs_a_last_line_torn_at_any_byte) {
  const Folder folder;
  const std::string first = result_line("a");
  const std::string last = result_line("b");
  for (std::size_t cut = 0; cut <= last.size(); ++cut) {
    put(folder / "r", first + last.substr(0, cut));
    const Result<ResultsFile> file = ResultsFile::open(folder / "r", true);
    BOOST_REQUIRE_MESSAGE(file, cut);
    const bool is_whole = cut + 1 >= last.size();  // at most the line feed was lost
    BOOST_TEST(file->answered().contains("b") == is_whole, cut);
    BOOST_TEST(get(folder / "r") == (is_whole ? first + last : first), cut);
  }
}

BOOST_AUTO_TEST_CASE(resume_refuses_a_file_that_holds_something_else) {
  const Folder folder;
  put(folder / "r", "notes\n" + result_line("a"));
  BOOST_TEST(open_mistake(folder / "r", true).find("r:1: no result") != std::string::npos);
  put(folder / "r", "{\"id\":\"a\",\"prompt\":\"a batch, not results\"}\n");
  BOOST_TEST(open_mistake(folder / "r", true).find("r:1: no result") != std::string::npos);
  put(folder / "r", result_line("a") + result_line("a"));
  BOOST_TEST(open_mistake(folder / "r", true).find("r:2: id a") != std::string::npos);
  BOOST_TEST(open_mistake(folder / "no/r", false).find("cannot open") != std::string::npos);
  BOOST_REQUIRE(mkfifo((folder / "fifo").c_str(), 0600) == 0);
  BOOST_TEST(open_mistake(folder / "fifo", true).find("not a regular file") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(an_output_file_appears_only_when_it_is_whole) {
  const Folder folder;
  {
    Result<OutputFile> file = OutputFile::create(folder / "o");
    BOOST_REQUIRE(file);
    BOOST_REQUIRE(file->write(std::as_bytes(std::span("abc", 3))));
  }
  BOOST_TEST(fs::is_empty(folder.path));
  BOOST_REQUIRE(write_file(folder / "o", "abc"));
  BOOST_TEST(get(folder / "o") == "abc");
  BOOST_TEST(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) == 1);
}

BOOST_AUTO_TEST_CASE(what_dead_processes_left_of_a_file_goes_and_what_the_living_write_stays) {
  const Folder folder;
  const std::string own = (folder.path / ("o." + std::to_string(::getpid()) + ".tmp")).string();
  for (const std::string& leftover : {own, folder / "o.1.tmp"}) put(leftover, "torn");
  for (const char* other : {"o.1x.tmp", "o..tmp", "p.1.tmp", "o.1.tmpx"}) put(folder / other, "");
  Result<OutputFile> first = OutputFile::create(folder / "o");
  BOOST_REQUIRE(first);
  BOOST_TEST(!fs::exists(folder / "o.1.tmp"));
  BOOST_TEST(get(own).empty());
  // It is being written: who comes second neither takes it away nor writes into it.
  const Result<OutputFile> second = OutputFile::create(folder / "o");
  BOOST_REQUIRE(!second);
  BOOST_TEST(second.error().message == own +
                                           ": there already: delete it, unless another process is "
                                           "writing it");
  BOOST_REQUIRE(first->write(std::as_bytes(std::span("abc", 3))));
  BOOST_REQUIRE(first->commit());
  BOOST_TEST(get(folder / "o") == "abc");
  BOOST_TEST(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) == 5);
}

BOOST_AUTO_TEST_SUITE_END()
