#include "modules/swap_common/per_sequence.h"
#include "modules/swap_common/slot_staging.h"
#include "modules/swap_score/sequence.h"

EBB_MODULE(ebb::Swap, ebb::PolicyModule<ebb::PerSequencePolicy<ebb::score::Sequence>>, "swap_score",
           EBB_VERSION);
