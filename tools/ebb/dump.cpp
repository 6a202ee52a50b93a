// ebb dump: what the layers with index keys see of documents, to train scorers from. A file for
// each document, then dump.json, which says what they are, and then the folder gets its name;
// without dump.json a folder is no dump.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <variant>

#include "core/text.h"
#include "tools/ebb/batch.h"
#include "tools/ebb/commands.h"
#include "tools/ebb/dump_document.h"
#include "tools/ebb/exit_status.h"
#include "tools/ebb/fields.h"
#include "tools/ebb/interrupt.h"
#include "tools/ebb/number_list.h"
#include "tools/ebb/output_file.h"
#include "tools/ebb/output_folder.h"
#include "tools/ebb/progress.h"
#include "tools/ebb/session.h"
#include "tools/ebb/tell.h"
#include "tools/ebb/validators.h"

namespace ebb::cli {
namespace {

using nlohmann::ordered_json;

constexpr int kDumpVersion = 1;

struct DumpArgs {
  SessionArgs session;
  std::string input, output;
  std::vector<std::int64_t> layers;
  DumpSettings settings;
};

struct Document {
  std::string id;
  std::vector<std::int32_t> tokens;
};

Result<std::vector<Document>> encode_documents(const Engine& engine, const Batch& batch,
                                               const GenerationSettings& defaults,
                                               const std::string& name) {
  std::vector<Document> documents;
  for (const Batch::Line& line : batch.lines()) {
    const auto fail = [&](const std::string& why) {
      return Error{Errc::invalid_argument,
                   fmt::format("{}:{}: {}", printable(name), line.number, why)};
    };
    EBB_ASSIGN(const Request request, parse_request(line.text, defaults));
    if (!request.refusal.empty()) return fail(request.refusal);
    Result<std::vector<std::int32_t>> tokens = encode_prompt(request, engine.tokenizer());
    if (!tokens) return fail(tokens.error().message);
    if (const Status status = check_prompt(engine, *tokens); !status) {
      return fail(status.error().message);
    }
    documents.push_back({request.id, *std::move(tokens)});
  }
  return documents;
}

/// Those of `wanted`, or all if it is empty; with their numbers among all.
Result<std::vector<DumpLayer>> find_layers(const Engine& engine,
                                           const std::vector<std::int64_t>& wanted) {
  std::vector<DumpLayer> layers;
  std::int32_t ordinal = 0;
  for (std::int32_t layer = 0; layer < engine.model().n_layers; ++layer) {
    DumpLayer found{layer, ordinal, {}};
    if (!engine.attention().scored_layer(layer, found.view)) continue;
    ++ordinal;
    if (wanted.empty() || std::find(wanted.begin(), wanted.end(), layer) != wanted.end()) {
      layers.push_back(found);
    }
  }
  if (layers.empty()) {
    return make_error(Errc::invalid_argument, "%s: no layer of this model has index keys",
                      std::string(engine.loader().source()).c_str());
  }
  return layers;
}

Result<ordered_json> describe_rope(Engine& engine, const ScoredLayer& view) {
  std::vector<double> frequency(static_cast<std::size_t>(view.n_pairs));
  EBB_TRY(engine.read(frequency.data(), view.frequency, frequency.size() * sizeof(double)));
  ordered_json metadata = ordered_json::object();
  for (const std::string& key : engine.loader().keys()) {
    if (key.find("rope") == key.npos) continue;
    std::visit([&](const auto& value) { metadata[key] = value; }, *engine.loader().meta(key));
  }
  return ordered_json{{"n_pairs", view.n_pairs}, {"frequency", frequency}, {"metadata", metadata}};
}

Result<ordered_json> describe(Engine& engine, const Manifest& manifest,
                              const std::vector<DumpLayer>& layers, const DumpSettings& settings) {
  const ScoredLayer& view = layers.front().view;
  EBB_ASSIGN(const ordered_json rope, describe_rope(engine, view));
  ordered_json list = ordered_json::array();
  for (const DumpLayer& layer : layers) {
    list.push_back({{"layer", layer.layer}, {"ordinal", layer.ordinal}});
  }
  constexpr const char* kFormats[] = {"f32", "f16", "fp8", "fp4"};
  return ordered_json{{"ebb_dump", kDumpVersion},
                      {"program", EBB_VERSION},
                      {"model", engine.loader().digest()},
                      {"source", engine.loader().source()},
                      {"manifest", manifest.hash()},
                      {"layers", list},
                      {"d_model", view.d_model},
                      {"d", view.d},
                      {"n_heads", view.n_heads},
                      {"ratio", view.ratio},
                      {"top_k", engine.staged().top_k},
                      {"weight_scale", view.weight_scale},
                      {"transformed", view.transformed},
                      {"index_format", kFormats[static_cast<std::size_t>(view.keys.format)]},
                      {"rope", rope},
                      {"every", settings.every},
                      {"last", settings.last},
                      {"vector_type", settings.bf16 ? "bf16" : "f32"}};
}

class DumpRun {
 public:
  DumpRun(Engine& engine, const OutputFolder& folder, const DumpSettings& settings)
      : engine_(engine), folder_(folder), settings_(settings) {}

  /// False if interrupted; what is finished stays.
  Result<bool> run(std::span<const Document> documents, const std::vector<DumpLayer>& layers,
                   const Interrupt& interrupt) {
    std::uint64_t work = 0;
    for (const Document& document : documents) work += document.tokens.size();
    Progress progress(static_cast<std::int64_t>(documents.size()), work,
                      ::isatty(STDERR_FILENO) == 1);
    for (const Document& document : documents) {
      const auto n = static_cast<std::int64_t>(document.tokens.size());
      const std::string file = fmt::format("{:06}.safetensors", done_.size());
      EBB_ASSIGN(const DumpedDocument dumped,
                 dump_document(engine_, layers, settings_, document.id, document.tokens,
                               folder_.file(file), [&](std::int64_t fed) {
                                 progress.feeding(document.id, document.tokens.size(), fed, n);
                                 return !interrupt.requested();
                               }));
      if (!dumped.is_whole) return false;
      done_.push_back({{"id", document.id},
                       {"file", file},
                       {"n_tokens", dumped.n_tokens},
                       {"n_rows", dumped.n_rows},
                       {"n_chunks", dumped.n_chunks}});
      progress.finished(document.tokens.size(),
                        fmt::format("{}: {} tokens, {} rows", printable(document.id, 60),
                                    dumped.n_tokens, dumped.n_rows));
    }
    return true;
  }

  const ordered_json& done() const { return done_; }

 private:
  Engine& engine_;
  const OutputFolder& folder_;
  const DumpSettings& settings_;
  ordered_json done_ = ordered_json::array();
};

Result<int> dump(const DumpArgs& args) {
  Interrupt interrupt;
  EBB_ASSIGN(const Manifest manifest, load_manifest(args.session));
  const GenerationSettings defaults;
  EBB_ASSIGN(const std::string text, read_file(args.input));
  EBB_ASSIGN(const Batch batch, Batch::read(text, args.input, defaults));
  EBB_ASSIGN(OutputFolder folder, OutputFolder::create(args.output));
  // From here on the folder has to be cleaned up.
  interrupt.arm();
  EngineOptions options;
  options.kept_layers.assign(args.layers.begin(), args.layers.end());
  if (args.layers.empty()) options.kept_layers = {-1};
  EBB_ASSIGN(const std::unique_ptr<Engine> engine,
             open_engine(manifest, args.session, std::move(options)));
  EBB_ASSIGN(const std::vector<Document> documents,
             encode_documents(*engine, batch, defaults, args.input));
  EBB_ASSIGN(const std::vector<DumpLayer> layers, find_layers(*engine, args.layers));
  EBB_ASSIGN(ordered_json about, describe(*engine, manifest, layers, args.settings));
  DumpRun dump_run(*engine, folder, args.settings);
  const Result<bool> through = dump_run.run(documents, layers, interrupt);
  about["complete"] = through && *through;
  about["documents"] = dump_run.done();
  // What is finished is of use, whatever ended the run.
  if (!dump_run.done().empty()) {
    EBB_TRY(write_file(folder.file("dump.json"), about.dump(1) + "\n"));
    EBB_TRY(folder.commit());
  }
  if (!through) return through.error();
  if (!*through) {
    tell("interrupted: {} of {} documents are dumped\n", dump_run.done().size(), documents.size());
    return kInterrupted;
  }
  return kDone;
}

}  // namespace

void add_dump(CLI::App& app, int& status) {
  CLI::App* const command =
      app.add_subcommand("dump", "Write down what scorers are trained from, document by document");
  const auto args = std::make_shared<DumpArgs>();
  add_session_args(*command, args->session);
  add_batch_arg(*command, args->input, "Documents, in the form of `ebb run`; - is stdin");
  command
      ->add_option(
          "-o,--output", args->output,
          "A new or empty folder: dump.json and one .safetensors a document; appears when\n"
          "all is in it")
      ->required()
      ->check(output_file())
      ->type_name("FOLDER");
  add_number_list(*command, "--layers", args->layers,
                  "Decoder layers; default: all with index keys", 0, 65535);
  command
      ->add_option("--every", args->settings.every, "Rows of tokens at every N-th position only,")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24))
      ->type_name("N");
  command->add_option("--last", args->settings.last, "and of the last N tokens")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 24))
      ->type_name("N");
  command->add_flag("--bf16", args->settings.bf16,
                    "Hidden vectors and index queries as bf16: half the size");
  command->footer(
      "A document is fed whole: put the answer at the end of a prompt to have its tokens too. Per\n"
      "layer L a file holds hidden_layer_L [rows, d_model], index_q_layer_L [rows, heads, d],\n"
      "index_weight_layer_L [rows, heads] and keys_layer_L [chunks, d], beside positions and\n"
      "tokens. The model's own logits are\n"
      "  sum over heads of index_weight * weight_scale * max(0, index_q . key).\n"
      "Ctrl-C keeps the documents that are finished, and dump.json says so (status 130).\n"
      "\n"
      "Example:\n"
      "  ebb dump config/demo/demo.toml -i config/demo/prompts.jsonl -o dump --every 4");
  command->callback([args, &status] { status = finish(dump(*args)); });
}

}  // namespace ebb::cli
