# Flags that every target of the project carries.
get_filename_component(EBB_ROOT ${CMAKE_CURRENT_LIST_DIR}/.. ABSOLUTE)
add_library(ebb_flags INTERFACE)
target_include_directories(ebb_flags INTERFACE ${EBB_ROOT})
target_compile_options(ebb_flags INTERFACE -Wall -Wextra -Wpedantic -fvisibility=hidden
                                           -fvisibility-inlines-hidden)
# The same source must give the same bits in every kernel that computes an element: the compiler may
# not fuse multiply and add on its own; where fusion is wanted, the code asks for it.
target_compile_options(ebb_flags INTERFACE -ffp-contract=off)
if(EBB_SANITIZE)
  target_compile_options(ebb_flags INTERFACE -fsanitize=${EBB_SANITIZE} -fno-omit-frame-pointer
                                             -fno-sanitize-recover=all)
  target_link_options(ebb_flags INTERFACE -fsanitize=${EBB_SANITIZE})
endif()
# Of the sanitizers' builds the compiling takes longer than the tests.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")
if(EBB_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1 -DNDEBUG")
endif()
