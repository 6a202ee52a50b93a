#include "modules/swap_adaptive/sequence.h"
#include "modules/swap_common/per_sequence.h"
#include "modules/swap_common/slot_staging.h"

EBB_MODULE(ebb::Swap, ebb::PolicyModule<ebb::PerSequencePolicy<ebb::adaptive::Sequence>>,
           "swap_adaptive", EBB_VERSION);
