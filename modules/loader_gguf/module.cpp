#include "modules/loader_gguf/gguf_loader.h"

EBB_MODULE(ebb::Loader, ebb::gguf::GgufLoader, "loader_gguf", EBB_VERSION);
