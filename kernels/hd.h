#pragma once

// EBB_HD marks element functions that both the CPU loops and the CUDA kernels call.
#ifdef __CUDACC__
#define EBB_HD __host__ __device__
#else
#define EBB_HD
#endif
