#define BOOST_TEST_MODULE core_options
#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <limits>

#include "tests/core/support.h"

namespace ebb {
namespace {

using test::options_of;

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr double kInf = std::numeric_limits<double>::infinity();

std::string mistakes(Options& options) {
  const Status status = options.finish();
  return status ? "" : status.error().message;
}

BOOST_AUTO_TEST_CASE(absent_keys_give_the_default) {
  const auto options = options_of("");
  BOOST_TEST(options->get_bool("a", true));
  BOOST_TEST(options->get_int("b", -3, -5, 5) == -3);
  BOOST_TEST(options->get_float("c", 0.25, 0, 1) == 0.25);
  BOOST_TEST(options->get_size("d", 77, 0, 100) == 77u);
  BOOST_TEST(options->get_string("e", "x") == "x");
  BOOST_TEST(options->get_choice("f", 1, {"p", "q"}) == 1u);
  BOOST_TEST(options->get_path("g") == "");
  BOOST_TEST((options->get_int_list("h", {1, 2}, 0, 9) == std::vector<std::int64_t>{1, 2}));
  BOOST_TEST(!options->has("a"));
  BOOST_TEST(mistakes(*options) == "");
}

BOOST_AUTO_TEST_CASE(present_keys_give_their_value) {
  const auto options = options_of(R"(a = false
b = 5
c = 1
d = "64KiB"
e = "grün"
f = "q"
h = [3, 0x4]
k = [])");
  BOOST_TEST(!options->get_bool("a", true));
  BOOST_TEST(options->get_int("b", 0, 5, 5) == 5);
  BOOST_TEST(options->get_float("c", 0, 0, 1) == 1.0);
  BOOST_TEST(options->get_size("d", 0, 0, 65536) == 65536u);
  BOOST_TEST(options->get_string("e", "") == "grün");
  BOOST_TEST(options->get_choice("f", 0, {"p", "q"}) == 1u);
  BOOST_TEST((options->get_int_list("h", {}, 0, 9) == std::vector<std::int64_t>{3, 4}));
  BOOST_TEST(options->get_int_list("k", {1}, 0, 9).empty());
  BOOST_TEST(options->has("a"));
  BOOST_TEST(mistakes(*options) == "");
}

BOOST_AUTO_TEST_CASE(sizes_are_read_in_powers_of_1024_and_1000) {
  const std::pair<const char*, std::uint64_t> kCases[] = {
      {"0", 0},
      {"512", 512},
      {"\"512\"", 512},
      {"\"7B\"", 7},
      {"\"1KiB\"", 1024},
      {"\"3 MiB\"", 3u << 20},
      {"\"16GiB\"", std::uint64_t{16} << 30},
      {"\"2TiB\"", std::uint64_t{2} << 40},
      {"\"1kB\"", 1000},
      {"\"1KB\"", 1000},
      {"\"5MB\"", 5'000'000},
      {"\"5GB\"", 5'000'000'000},
      {"\"5TB\"", 5'000'000'000'000},
      {"\"18446744073709551615\"", std::numeric_limits<std::uint64_t>::max()},
  };
  for (const auto& [text, bytes] : kCases) {
    const auto options = options_of(std::string("s = ") + text);
    BOOST_TEST_CONTEXT(text) {
      BOOST_TEST(options->get_size("s", 1, 0, UINT64_MAX) == bytes);
      BOOST_TEST(mistakes(*options) == "");
    }
  }
  for (const char* text :
       {"-1", "1.5", "true", "\"\"", "\"KiB\"", "\"-1\"", "\"1.5GiB\"", "\"1gib\"", "\"1GiBB\"",
        "\"1  GiB\"", "\" 1\"", "\"16777216TiB\"", "\"1K\"", "\"18446744073709551616\"", "[1]"}) {
    const auto options = options_of(std::string("s = ") + text);
    BOOST_TEST_CONTEXT(text) {
      BOOST_TEST(options->get_size("s", 11, 0, UINT64_MAX) == 11u);
      BOOST_TEST(mistakes(*options) != "");
    }
  }
}

BOOST_AUTO_TEST_CASE(wrong_values_are_named_with_position_and_range) {
  const auto options = options_of(R"(a = 1
  b = "five"
c = 2.0
d = "65KiB"
e = 5
f = "r"
g = ""
slots = 0
i = [5, 10]
j = 7
n = nan)");
  BOOST_TEST(options->get_bool("a", true));
  BOOST_TEST(options->get_int("b", 3, 0, 9) == 3);
  BOOST_TEST(options->get_int("c", 3, kMin, kMax) == 3);
  BOOST_TEST(options->get_size("d", 3, 1, 65536) == 3u);
  BOOST_TEST(options->get_string("e", "x") == "x");
  BOOST_TEST(options->get_choice("f", 0, {"p", "q"}) == 0u);
  BOOST_TEST(options->get_path("g") == "");
  BOOST_TEST(options->get_int("slots", 96, 1, 1048576) == 96);
  BOOST_TEST((options->get_int_list("i", {7}, 0, 9) == std::vector<std::int64_t>{7}));
  BOOST_TEST(options->get_int_list("j", {}, 0, 9).empty());
  BOOST_TEST(options->get_float("n", 0.5, -kInf, kInf) == 0.5);
  const std::string text = mistakes(*options);
  for (const char* line : {
           "engine.toml:1:5: [swap] a = 1: want true or false",
           "engine.toml:2:7: [swap] b = \"five\": want an integer 0..9",
           "engine.toml:3:5: [swap] c = 2.0: want an integer",
           "engine.toml:4:5: [swap] d = \"65KiB\": want bytes (512, \"64KiB\", \"16GiB\", \"5GB\") "
           "1..65536",
           "engine.toml:5:5: [swap] e = 5: want text in quotes",
           "engine.toml:6:5: [swap] f = \"r\": want one of p, q",
           "engine.toml:7:5: [swap] g = \"\": want a file path",
           "engine.toml:8:9: [swap] slots = 0: want an integer 1..1048576",
           "engine.toml:9:9: [swap] i[1] = 10: want an integer 0..9",
           "engine.toml:10:5: [swap] j = 7: want an integer 0..9, as a list",
           "engine.toml:11:5: [swap] n = nan: want a number",
       }) {
    BOOST_TEST(("\n" + text + "\n").find("\n" + std::string(line) + "\n") != text.npos,
               line << "\n  is not in\n"
                    << text);
  }
  BOOST_TEST(std::count(text.begin(), text.end(), '\n') == 10);
}

BOOST_AUTO_TEST_CASE(open_ranges_are_said_in_words) {
  const auto options = options_of("a = -1\nb = 9\nc = -0.5");
  options->get_int("a", 0, 0, kMax);
  options->get_int("b", 0, kMin, 5);
  options->get_float("c", 0, 0, kInf);
  BOOST_TEST(mistakes(*options) ==
             "engine.toml:1:5: [swap] a = -1: want an integer, at least 0\n"
             "engine.toml:2:5: [swap] b = 9: want an integer, at most 5\n"
             "engine.toml:3:5: [swap] c = -0.5: want a number, at least 0");
}

BOOST_AUTO_TEST_CASE(keys_nobody_asked_for_are_mistakes) {
  const auto options = options_of("slotz = 3\nslots = 4\n[table]\nx = 1");
  options->get_int("slots", 0, 0, 9);
  options->get_string("policy", "");
  BOOST_TEST(options->has("slotz"));  // asking whether it is there is not asking for it
  BOOST_TEST(mistakes(*options) ==
             "engine.toml:1:1: [swap] slotz: unknown key; known: policy, slots\n"
             "engine.toml:3:2: [swap] table: unknown key; known: policy, slots");
  BOOST_TEST(mistakes(*options) != "");  // finish does not forget
}

BOOST_AUTO_TEST_CASE(a_value_is_shown_on_one_short_line) {
  const auto options = options_of("a = \"\\u001b[31m\\n\\u009b\"\nb = \"" + std::string(500, 'x') +
                                  "\"\n[c]\nd = 1");
  options->get_int("a", 0, 0, 1);
  options->get_int("b", 0, 0, 1);
  options->get_int("c", 0, 0, 1);
  const std::string text = mistakes(*options);
  BOOST_TEST(std::count(text.begin(), text.end(), '\n') == 2);
  BOOST_TEST(text.find('\x1b') == text.npos);
  BOOST_TEST(text.find("\xc2\x9b") == text.npos);
  BOOST_TEST(text.find("= \"" + std::string(59, 'x') + "...: want") != text.npos, text);
  BOOST_TEST(text.find("[swap] c = a table: want") != text.npos, text);
}

BOOST_AUTO_TEST_CASE(where_begins_a_message_about_a_key) {
  const auto options = options_of("\na = 1");
  BOOST_TEST(options->where("a") == "engine.toml:2:5: [swap] a");
  BOOST_TEST(options->where("b") == "engine.toml:1:1: [swap] b");
}

BOOST_AUTO_TEST_CASE(paths_start_from_the_folder_of_the_file) {
  const std::string text =
      "a = \"m.gguf\"\nb = \"../x/./m.gguf\"\nc = \"/m.gguf\"\nd = \"m\\u0000\"";
  const auto options = options_of(text, "loader", "conf/engine.toml");
  BOOST_TEST(options->get_path("a") == "conf/m.gguf");
  BOOST_TEST(options->get_path("b") == "x/m.gguf");
  BOOST_TEST(options->get_path("c") == "/m.gguf");
  BOOST_TEST(options->get_path("d") == "");
  BOOST_TEST(mistakes(*options) ==
             "conf/engine.toml:4:5: [loader] d = \"m\\u0000\": want a file path");
}

}  // namespace
}  // namespace ebb
