// Judges the engine, in exact precision, by logits that two independent engines computed.
//
//   oracle_check VECTORS MODEL.gguf... [--chunks 1,3,...] [--set k=v]
//
// VECTORS holds a folder named like each model (for a split model, without the part's number). For
// every prompt and every prefill chunk: argmax at every position, the last logits within the
// index's tolerance, the bits equal to those of the whole prompt in one chunk; greedy continuations
// equal; and the same prompts with the training-time rounding on, against their own vectors. Exit
// status 1 if any fails.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/engine/harness.h"
#include "tests/worst.h"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Rows = std::vector<std::vector<float>>;

std::vector<float> read_floats(const fs::path& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  std::vector<float> values(static_cast<std::size_t>(in.tellg()) / sizeof(float));
  in.seekg(0);
  in.read(reinterpret_cast<char*>(values.data()),
          static_cast<std::streamsize>(values.size() * sizeof(float)));
  return values;
}

double max_difference(std::span<const float> got, std::span<const float> want) {
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    worst = ebb::test::worse(worst, std::fabs(static_cast<double>(got[i]) - want[i]));
  }
  return worst;
}

struct Judge {
  std::string label;
  int n_checks = 0;
  int n_failed = 0;
  void expect(bool ok, const std::string& what) {
    ++n_checks;
    if (ok) return;
    if (++n_failed <= 20) std::printf("  FAILED %s: %s\n", label.c_str(), what.c_str());
  }
};

struct Oracle {
  json index;
  std::size_t vocab = 0;
  std::vector<float> last, last_fp64, last_sim;
  std::span<const float> row(const std::vector<float>& rows, std::size_t i) const {
    return std::span<const float>(rows).subspan(i * vocab, vocab);
  }
};

Oracle read_oracle(const fs::path& folder) {
  Oracle oracle;
  std::ifstream in(folder / "index.json");
  oracle.index = json::parse(in);
  oracle.last = read_floats(folder / "last_logits.f32");
  oracle.last_fp64 = read_floats(folder / "last_logits_fp64.f32");
  oracle.last_sim = read_floats(folder / "last_logits_sim.f32");
  oracle.vocab = oracle.last.size() / oracle.index["prompts"].size();
  return oracle;
}

/// The sizes that every engine of this program opens with.
std::vector<std::string> sizes(std::size_t chunk) {
  return {"engine.max_context=1024", "engine.prefill_chunk=" + std::to_string(chunk)};
}

void check_plain(const Oracle& oracle, const std::string& manifest, std::size_t chunk,
                 const std::vector<std::string>& extra, std::vector<Rows>& whole, Judge& judge) {
  std::vector<std::string> overrides = sizes(std::max<std::size_t>(chunk, 1));
  overrides.insert(overrides.end(), extra.begin(), extra.end());
  const auto engine = ebb::test::open_engine(manifest, overrides, true);
  const double tolerance = oracle.index["tolerance"]["fp32_engine_max_abs"];
  double worst = 0;
  std::size_t at = 0;
  for (const json& prompt : oracle.index["prompts"]) {
    const std::vector<std::int32_t> tokens = prompt["tokens"];
    const std::string name = "prompt of " + std::to_string(tokens.size());
    Rows rows = ebb::test::prompt_logits(*engine, tokens, chunk);
    const std::set<std::size_t> unsure(prompt["argmax_unsure"].begin(),
                                       prompt["argmax_unsure"].end());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (unsure.count(i) > 0) continue;
      const std::int32_t want = prompt["argmax"][i];
      const std::int32_t got = ebb::test::argmax(rows[i]);
      judge.expect(got == want, name + " position " + std::to_string(i) + ": argmax " +
                                    std::to_string(got) + ", want " + std::to_string(want));
    }
    const auto row = prompt["row"].get<std::size_t>();
    for (const std::vector<float>* reference : {&oracle.last, &oracle.last_fp64}) {
      const double difference = max_difference(rows.back(), oracle.row(*reference, row));
      worst = ebb::test::worse(worst, difference);
      judge.expect(difference <= tolerance,
                   name + ": last logits differ by " + std::to_string(difference));
    }
    if (whole.size() <= at) {
      whole.push_back(std::move(rows));
    } else {
      bool same = true;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        same = same && std::memcmp(rows[i].data(), whole[at][i].data(),
                                   rows[i].size() * sizeof(float)) == 0;
      }
      judge.expect(same, name + ": bits differ from the whole prompt in one chunk");
    }
    ++at;
  }
  for (const json& expected : oracle.index["greedy"]) {
    const std::vector<std::int32_t> tokens = expected["tokens"];
    const std::vector<std::int32_t> want = expected["continuation"];
    const std::vector<std::int32_t> got = ebb::test::greedy(*engine, tokens, want.size());
    judge.expect(got == want, "greedy continuation of " + std::to_string(tokens.size()));
  }
  std::printf("  %-24s worst |difference| %.2e, %d checks, %d failed\n", judge.label.c_str(), worst,
              judge.n_checks, judge.n_failed);
}

void check_simulation(const Oracle& oracle, const std::string& manifest, std::size_t chunk,
                      const std::vector<std::string>& extra, Judge& judge) {
  std::vector<std::string> overrides = sizes(chunk);
  overrides.push_back("decoder.qat_simulation=true");
  overrides.insert(overrides.end(), extra.begin(), extra.end());
  const auto engine = ebb::test::open_engine(manifest, overrides);
  std::vector<double> differences;
  for (std::size_t i = 0; i < oracle.index["prompts"].size(); ++i) {
    const json& prompt = oracle.index["prompts"][i];
    const json& simulation = oracle.index["simulation"][i];
    const std::vector<std::int32_t> tokens = prompt["tokens"];
    const Rows rows = ebb::test::prompt_logits(*engine, tokens, chunk, true);
    const double difference =
        max_difference(rows.back(), oracle.row(oracle.last_sim, prompt["row"]));
    const double allowed = std::max(1e-2, 4 * simulation["fp32_vs_fp64_last"].get<double>());
    judge.expect(difference <= allowed, "prompt of " + std::to_string(tokens.size()) +
                                            ": differs by " + std::to_string(difference));
    differences.push_back(difference);
  }
  std::sort(differences.begin(), differences.end());
  const double median = differences[differences.size() / 2];
  judge.expect(median <= 2e-3, "median difference " + std::to_string(median));
  std::printf("  %-24s worst %.2e, median %.2e, %d checks, %d failed\n", judge.label.c_str(),
              differences.back(), median, judge.n_checks, judge.n_failed);
}

int run(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr,
                 "usage: oracle_check VECTORS MODEL.gguf... [--chunks 1,3,...] [--set k=v]\n");
    return 2;
  }
  const fs::path vectors = argv[1];
  std::vector<std::string> models, extra;
  std::vector<std::size_t> chunks{1024, 1, 3, 4, 5, 127, 128, 129};
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--chunks" && i + 1 < argc) {
      chunks.assign(1, 1024);  // the whole prompt is what the others are compared with
      const std::string list = argv[++i];
      for (std::size_t at = 0; at < list.size();) {
        std::size_t used = 0;
        chunks.push_back(std::stoul(list.substr(at), &used));
        at += used + 1;
      }
    } else if (word == "--set" && i + 1 < argc) {
      extra.emplace_back(argv[++i]);
    } else {
      models.push_back(word);
    }
  }
  int n_failed = 0, n_passed = 0;
  for (const std::string& file : models) {
    const fs::path model = fs::absolute(file);
    const std::string name = model.stem().string();
    const Oracle oracle = read_oracle(vectors / name.substr(0, name.find("-0000")));
    const std::string manifest = ebb::test::cpu_manifest(model.string(), false);
    std::printf("%s\n", name.c_str());
    std::vector<Rows> whole;
    for (const std::size_t chunk : chunks) {
      Judge judge{chunk == 1024 ? "whole" : "chunks of " + std::to_string(chunk)};
      check_plain(oracle, manifest, chunk, extra, whole, judge);
      (judge.n_failed > 0 ? n_failed : n_passed)++;
      std::fflush(stdout);
    }
    for (const std::size_t chunk : {std::size_t{1024}, std::size_t{5}}) {
      Judge judge{"rounding on, " + std::string(chunk == 1024 ? "whole" : "chunks of 5")};
      check_simulation(oracle, manifest, chunk, extra, judge);
      (judge.n_failed > 0 ? n_failed : n_passed)++;
      std::fflush(stdout);
    }
  }
  std::printf("%d passed, %d failed\n", n_passed, n_failed);
  return n_failed == 0 && n_passed > 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return ebb::test::run_check("oracle_check", run, argc, argv); }
