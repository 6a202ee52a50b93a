# compute_cuda is built where nvcc is found; EBB_CUDA says what to do where it is not.
set(EBB_CUDA AUTO CACHE STRING "build compute_cuda: AUTO (if there is a CUDA compiler), ON, OFF")
set_property(CACHE EBB_CUDA PROPERTY STRINGS AUTO ON OFF)
set(EBB_CUDA_ARCHITECTURES "90a-real;75-virtual" CACHE STRING
    "what the kernels are compiled for: machine code, and code that the driver compiles")
set(EBB_HAVE_CUDA OFF)
if(NOT EBB_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  set(CMAKE_CUDA_ARCHITECTURES 75)  # of the compiler's test; targets name their own
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    # CMake before 3.26 does not know that nvcc takes this.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    find_package(CUDAToolkit REQUIRED)
    set(EBB_HAVE_CUDA ON)
  elseif(EBB_CUDA STREQUAL "ON")
    message(FATAL_ERROR "EBB_CUDA=ON, but no CUDA compiler was found (nvcc in PATH, or "
                        "CMAKE_CUDA_COMPILER)")
  endif()
endif()
