// Whether copied sequences go on as those that were fed (copy_cases.h), on any backend.
//
//   copy_check [--set k=v]... [--explain]
//
// Where a case first fails, what was fed and copied is compared with an engine that swaps nothing.
// --explain runs the cases that swap alone, and compares those that pass too.
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
    std::size_t n_right = 0;
    bool all_right = true;
    for (const std::size_t place : places) {
      const std::string fault = copies.check(place);
      if (fault.empty()) {
        ++n_right;
        continue;
      }
      std::printf("%s, %zu tokens: %s\n", one.name, place, fault.c_str());
      if (all_right) copies.explain(place);
      all_right = false;
    }
    if (explains && all_right) copies.explain(places.back());
    std::printf("copies, %s: %zu of %zu\n", one.name, n_right, places.size());
    passed = passed && all_right;
  }
  std::printf(passed ? "passed\n" : "FAILED\n");
  return passed ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return ebb::test::run_check("copy_check", run, argc, argv); }
