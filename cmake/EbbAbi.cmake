# EBB_ABI: a module loads only into a core built from the same interface headers by the same compiler
# with the same flags that change layout. Nobody has to remember to bump a number.
file(GLOB ebb_api_headers CONFIGURE_DEPENDS ${EBB_ROOT}/core/api/*.h ${EBB_ROOT}/kernels/ops/*.h)
list(SORT ebb_api_headers)
set(ebb_abi_text "")
foreach(header IN LISTS ebb_api_headers)
  file(SHA256 ${header} digest)
  string(APPEND ebb_abi_text "${digest};")
endforeach()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ebb_api_headers})
string(APPEND ebb_abi_text "${CMAKE_CXX_COMPILER_ID};${CMAKE_CXX_COMPILER_VERSION};"
                           "${CMAKE_CXX_STANDARD};${CMAKE_CXX_FLAGS};${EBB_SANITIZE}")
string(SHA256 ebb_abi_digest "${ebb_abi_text}")
string(SUBSTRING "${ebb_abi_digest}" 0 16 ebb_abi_short)
set(EBB_ABI "${ebb_abi_short}-${CMAKE_CXX_COMPILER_ID}-${CMAKE_CXX_COMPILER_VERSION}")
# In a header, so that a change rebuilds those who look at it and not every kernel.
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/ebb_abi.h CONTENT
     "#pragma once\n\n#define EBB_ABI \"${EBB_ABI}\"\n#define EBB_VERSION \"${PROJECT_VERSION}\"\n" @ONLY)
target_include_directories(ebb_flags INTERFACE ${CMAKE_BINARY_DIR}/generated)
