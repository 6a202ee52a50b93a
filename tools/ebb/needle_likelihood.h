#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/engine.h"
#include "tools/ebb/interrupt.h"
#include "tools/ebb/needles.h"
#include "tools/ebb/output_file.h"

namespace ebb::cli {

/// What one run found out about one needle, or was told by the output of another.
struct AnswerLikelihood {
  std::vector<std::int32_t> tokens;  ///< the answer and the end token
  std::vector<double> nats;          ///< -ln of the probability of each, after all before it

  double mean() const;  ///< nats a token
};

using Likelihoods = std::map<std::string, AnswerLikelihood>;  // by id of the needle

/// Needles, from what a run with an output wrote.
/// Errors: invalid_argument that names the line
Result<Likelihoods> read_likelihoods(std::string_view text, const std::string& name);

/// How likely is the right answer, given the prompt? Each needle's prompt is fed, then its answer,
/// token by token in steps of their own, whatever the model would have said. The answer is right if
/// each of its tokens and the end token is the most likely one, which is when greedy decoding gives
/// it. Steps that predict the answer are steps of decode, and so see what [memory] leaves to
/// select; the last `n_decode` tokens of the prompt are fed as such steps too.
class LikelihoodRun {
 public:
  /// `output`: where a line for each needle goes, or nullptr. `other`: of another run, to compare
  /// with needle by needle, or nullptr. All are borrowed.
  LikelihoodRun(Engine& engine, const std::vector<Needle>& needles, std::int64_t n_decode,
                const Likelihoods* other, OutputFile* output)
      : engine_(engine), needles_(needles), n_decode_(n_decode), other_(other), output_(output) {}

  /// Refuses what cannot be run before anything is.
  Status check() const;
  /// False if it was interrupted.
  Result<bool> run(Interrupt& interrupt);
  void print_table() const;

 private:
  struct Bucket {
    std::int64_t n_right = 0;
    std::vector<double> means;        // nats a token, by needle
    std::vector<double> differences;  // to the other run's

    void add(const Bucket& other);
  };
  struct Encoded {
    std::vector<std::int32_t> fed;     // prompt and answer
    std::vector<std::int32_t> wanted;  // answer and EOS
    std::size_t n_prompt = 0;
  };

  Result<Encoded> encode(const Needle& needle) const;
  Status finish(const Needle& needle, const Encoded& encoded, std::int64_t n_right,
                AnswerLikelihood found, double seconds, std::string& shown);
  void print_row(const std::string& name, std::size_t width, const Bucket& bucket) const;

  Engine& engine_;
  const std::vector<Needle>& needles_;
  std::int64_t n_decode_;
  const Likelihoods* other_;
  OutputFile* output_;
  std::map<NeedleBucket, Bucket> buckets_;
};

}  // namespace ebb::cli
