// Whether copied sequences go on as those that were fed (copy_cases.h), on any backend.
//
//   copy_check [--set k=v]... [--explain]
//
// Where a case fails, what was fed and copied is compared with an engine that swaps nothing; with
// --explain the cases that swap are, and nothing else is done.
// Exit status 1 if one does not, 2 if an engine cannot be opened.

#include <cstdio>

#include "tests/engine/copy_cases.h"

namespace {

int run(int argc, char** argv) {
  std::vector<std::string> settings;
  bool explains = false;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--explain") {
      explains = true;
      continue;
    }
    if (std::string(argv[i]) != "--set" || i + 1 == argc) {
      throw std::runtime_error("usage: copy_check [--set k=v]... [--explain]");
    }
    settings.emplace_back(argv[++i]);
  }
  bool passed = true;
  for (std::size_t i = 0; i < ebb::test::copy_cases().size(); ++i) {
    const ebb::test::CopyCase one = ebb::test::copy_cases()[i];
    const std::vector<std::size_t> places = ebb::test::copy_places(i);
    std::vector<std::string> all = one.settings;
    all.insert(all.end(), settings.begin(), settings.end());
    if (explains && !ebb::test::swaps(one)) continue;
    ebb::test::CopyRun copies(all);
    std::size_t n_right = 0, i_place = 0;
    for (const std::size_t place : places) {
      const std::string fault = copies.check(place);
      n_right += fault.empty();
      if (!fault.empty()) std::printf("%s, %zu tokens: %s\n", one.name, place, fault.c_str());
      const bool is_first_fault = !fault.empty() && n_right == i_place;
      ++i_place;
      if (is_first_fault || (explains && place == places.back())) copies.explain(place);
    }
    std::printf("copies, %s: %zu of %zu\n", one.name, n_right, places.size());
    passed = passed && n_right == places.size();
  }
  std::printf(passed ? "passed\n" : "FAILED\n");
  return passed ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "copy_check: %s\n", error.what());
    return 2;
  }
}
