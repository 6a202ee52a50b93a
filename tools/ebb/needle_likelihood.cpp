#include "tools/ebb/needle_likelihood.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "core/text.h"
#include "tools/ebb/fields.h"
#include "tools/ebb/lines.h"
#include "tools/ebb/logit_feed.h"
#include "tools/ebb/progress.h"
#include "tools/ebb/session.h"
#include "tools/ebb/statistics.h"

namespace ebb::cli {
namespace {

using Clock = std::chrono::steady_clock;

std::string interval_text(std::span<const double> values, const char* format) {
  if (values.size() < 2) return "";
  const Mean mean = mean_of(values);
  const std::string low = fmt::format(fmt::runtime(format), mean.value - mean.half_width);
  return fmt::format("{} to {}", low,
                     fmt::format(fmt::runtime(format), mean.value + mean.half_width));
}

}  // namespace

double AnswerLikelihood::mean() const {
  return std::accumulate(nats.begin(), nats.end(), 0.0) / static_cast<double>(nats.size());
}

Result<Likelihoods> read_likelihoods(std::string_view text, const std::string& name) {
  Likelihoods all;
  for (int number = 1; !text.empty(); ++number) {
    const std::string_view line = take_line(text);
    if (is_blank(line)) continue;
    const auto fail = [&name, number](std::string_view why) {
      return Error{Errc::invalid_argument, fmt::format("{}:{}: {}", printable(name), number, why)};
    };
    const Result<nlohmann::json> parsed = parse_json(line);
    if (!parsed) return fail(parsed.error().message);
    const char* const want = "want what `ebb eval needles --likelihood -o` wrote";
    if (!parsed->is_object() || !parsed->contains("id") || !parsed->at("id").is_string() ||
        !parsed->contains("tokens") || !parsed->contains("nats") ||
        !parsed->at("nats").is_array()) {
      return fail(want);
    }
    AnswerLikelihood one;
    if (!read_ids(parsed->at("tokens"), one.tokens)) return fail(want);
    for (const nlohmann::json& value : parsed->at("nats")) {
      // What is far from any logarithm of a probability would make sums overflow.
      if (!value.is_number() || !(std::abs(value.get<double>()) < 1e30)) return fail(want);
      one.nats.push_back(value.get<double>());
    }
    if (one.nats.empty() || one.nats.size() != one.tokens.size()) return fail(want);
    if (!all.emplace(parsed->at("id").get<std::string>(), std::move(one)).second) {
      return fail("this id stands in a line before");
    }
  }
  return all;
}

Result<LikelihoodRun::Encoded> LikelihoodRun::encode(const Needle& needle) const {
  const Tokenizer& tokenizer = *engine_.tokenizer();
  Encoded encoded;
  EBB_ASSIGN(encoded.fed, tokenizer.encode(needle.prompt, true));
  encoded.n_prompt = encoded.fed.size();
  EBB_ASSIGN(encoded.wanted, tokenizer.encode(needle.answer, false));
  encoded.fed.insert(encoded.fed.end(), encoded.wanted.begin(), encoded.wanted.end());
  encoded.wanted.push_back(tokenizer.eos());
  return encoded;
}

Status LikelihoodRun::check() const {
  bool is_any_paired = other_ == nullptr;
  for (const Needle& needle : needles_) {
    const auto fail = [&needle](const std::string& why) {
      return Error{Errc::invalid_argument,
                   fmt::format("needle {}: {}", printable(needle.id, 60), why)};
    };
    if (!needle.answers.empty()) {
      return fail("several answers, in any order, have no one likelihood: want answer");
    }
    EBB_ASSIGN(const Encoded encoded, encode(needle));
    if (encoded.n_prompt == 0) return fail("the prompt is empty");
    if (const Status status = check_prompt(engine_, encoded.fed); !status) {
      return fail("with its answer " + status.error().message);
    }
    if (n_decode_ >= static_cast<std::int64_t>(encoded.n_prompt)) {
      return fail(
          fmt::format("--decode {}: the prompt has {} tokens, of which one has to come first",
                      n_decode_, encoded.n_prompt));
    }
    if (other_ == nullptr) continue;
    const auto same = other_->find(needle.id);
    if (same == other_->end()) continue;
    is_any_paired = true;
    if (same->second.tokens != encoded.wanted) {
      return fail("--against has another answer, or another tokenizer's");
    }
  }
  if (!is_any_paired) {
    return make_error(Errc::invalid_argument, "--against: none of these needles is in it");
  }
  return ok_status();
}

Result<bool> LikelihoodRun::run(Interrupt& interrupt) {
  std::uint64_t work = 0;
  for (const Needle& needle : needles_) work += needle.prompt.size();
  Progress progress(static_cast<std::int64_t>(needles_.size()), work, ::isatty(STDERR_FILENO) == 1);
  for (const Needle& needle : needles_) {
    if (interrupt.requested()) return false;
    EBB_ASSIGN(const Encoded encoded, encode(needle));
    AnswerLikelihood found{encoded.wanted, {}};
    std::int64_t n_right = 0;
    const auto begin = Clock::now();
    const std::size_t n_fed_first = encoded.n_prompt - static_cast<std::size_t>(n_decode_);
    EBB_ASSIGN(const bool is_fed,
               feed_one_by_one(
                   engine_, encoded.fed, n_fed_first,
                   [&](std::size_t position, std::span<const float> logits) -> Status {
                     if (position + 1 < encoded.n_prompt) return ok_status();
                     const std::int32_t token = encoded.wanted[position + 1 - encoded.n_prompt];
                     found.nats.push_back(nll(logits, token));
                     if (std::isnan(found.nats.back())) {
                       return make_error(Errc::internal,
                                         "needle %s: after %zu tokens: logits that are no numbers",
                                         printable(needle.id, 60).c_str(), position + 1);
                     }
                     EBB_ASSIGN(const std::int32_t best, engine_.argmax(0));
                     if (best == token && n_right + 1 == std::ssize(found.nats)) ++n_right;
                     return ok_status();
                   },
                   [&](std::int64_t fed) {
                     progress.feeding(needle.id, needle.prompt.size(), fed,
                                      static_cast<std::int64_t>(n_fed_first));
                     return !interrupt.requested();
                   }));
    if (!is_fed) return false;
    std::string shown;
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    EBB_TRY(finish(needle, encoded, n_right, std::move(found), seconds, shown));
    progress.finished(needle.prompt.size(), shown);
  }
  return true;
}

Status LikelihoodRun::finish(const Needle& needle, const Encoded& encoded, std::int64_t n_right,
                             AnswerLikelihood found, double seconds, std::string& shown) {
  const auto n_prompt = static_cast<std::int64_t>(encoded.n_prompt);
  const bool is_right = n_right == std::ssize(found.nats);
  Bucket one;
  one.n_right = is_right ? 1 : 0;
  one.means.push_back(found.mean());
  nlohmann::ordered_json line{
      {"id", needle.id},           {"n_tokens", n_prompt}, {"answer", needle.answer},
      {"tokens", found.tokens},    {"nats", found.nats},   {"mean_nats", found.mean()},
      {"n_right_tokens", n_right}, {"right", is_right},    {"seconds", seconds}};
  if (other_ != nullptr) {
    if (const auto same = other_->find(needle.id); same != other_->end()) {
      one.differences.push_back(found.mean() - same->second.mean());
      line["difference"] = one.differences.back();
    }
  }
  buckets_[{needle.task, n_prompt}].add(one);
  shown = fmt::format("{} {}: {:.4f} nats a token", printable(needle.id, 60),
                      is_right ? "right" : "wrong", found.mean());
  if (output_ == nullptr) return ok_status();
  const std::string text = to_line(line);
  return output_->write(std::as_bytes(std::span(text)));
}

void LikelihoodRun::Bucket::add(const Bucket& other) {
  n_right += other.n_right;
  means.insert(means.end(), other.means.begin(), other.means.end());
  differences.insert(differences.end(), other.differences.begin(), other.differences.end());
}

void LikelihoodRun::print_table() const {
  std::size_t width = 8;
  for (const auto& [key, bucket] : buckets_) width = std::max(width, key.name().size());
  fmt::print("{:>{}} {:>11} {:>12} {:>20} {:>11}", "tokens", width, "right/run", "nats a token",
             "95 % interval", "perplexity");
  if (other_ != nullptr) fmt::print(" {:>5} {:>12} {:>22}", "pairs", "difference", "95 % interval");
  fmt::print("\n");
  Bucket all;
  for (const auto& [key, bucket] : buckets_) {
    print_row(key.name(), width, bucket);
    all.add(bucket);
  }
  print_row("all", width, all);
}

void LikelihoodRun::print_row(const std::string& name, std::size_t width,
                              const Bucket& bucket) const {
  const Mean mean = mean_of(bucket.means);
  fmt::print("{:>{}} {:>11} {:>12.4f} {:>20} {:>11.3f}", name, width,
             fmt::format("{}/{}", bucket.n_right, bucket.means.size()), mean.value,
             interval_text(bucket.means, "{:.4f}"), std::exp(mean.value));
  if (other_ != nullptr) {
    const Mean difference = mean_of(bucket.differences);
    fmt::print(" {:>5} {:>12} {:>22}", bucket.differences.size(),
               bucket.differences.empty() ? "" : fmt::format("{:+.4f}", difference.value),
               interval_text(bucket.differences, "{:+.4f}"));
  }
  fmt::print("\n");
}

}  // namespace ebb::cli
