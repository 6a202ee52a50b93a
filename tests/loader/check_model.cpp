// check_model FILE: opens a GGUF model, reads its configuration and checks its tensors, as a
// program does before it computes anything. Exit status 0, or 2 with one line on stderr. The corpus
// of broken files (tests/robustness) is judged with it.
#include <cstdio>

#include "modules/deepseek4/config.h"
#include "modules/loader_gguf/gguf_loader.h"

namespace {

ebb::Status check(const char* path) {
  std::unique_ptr<ebb::gguf::GgufLoader> loader;
  EBB_ASSIGN(loader, ebb::gguf::GgufLoader::open(path, false));
  ebb::deepseek4::Config config;
  EBB_ASSIGN(config, ebb::deepseek4::read_config(*loader));
  EBB_TRY(ebb::deepseek4::check_tensors(*loader, config));
  std::printf("layers %d, vocabulary %d, tensors %zu, %llu bytes\n", config.n_layers,
              config.vocab_size, loader->tensors().size(),
              static_cast<unsigned long long>(loader->data_bytes()));
  return ebb::ok_status();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: check_model FILE\n", stderr);
    return 2;
  }
  const ebb::Status result = check(argv[1]);
  if (result) return 0;
  std::fprintf(stderr, "%s\n", result.error().message.c_str());
  return 2;
}
