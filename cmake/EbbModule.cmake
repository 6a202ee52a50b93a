# ebb_module(NAME sources... [LIBRARIES libs...] [OPTIONS files...])
# One shared object, modules/NAME.so, that exports ebb_module and nothing else (module.map). It links nothing from
# the core (-z defs proves it) and stays mapped once loaded, since vendor libraries do not unload
# cleanly. The text of its options.toml, after that of the OPTIONS files,
# becomes EBB_OPTIONS_TOML.
function(ebb_module name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LIBRARIES;OPTIONS")
  add_library(${name} MODULE ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE ebb_flags ${arg_LIBRARIES})
  set(options_header ${CMAKE_CURRENT_BINARY_DIR}/${name}_options.h)
  set(text "")
  foreach(options_file IN LISTS arg_OPTIONS ITEMS ${CMAKE_CURRENT_SOURCE_DIR}/options.toml)
    if(EXISTS ${options_file})
      file(READ ${options_file} more)
      string(APPEND text "${more}")
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${options_file})
    endif()
  endforeach()
  file(CONFIGURE OUTPUT ${options_header} CONTENT
       "static constexpr char kEbbOptionsToml[] = R\"~~(${text})~~\";\n#define EBB_OPTIONS_TOML kEbbOptionsToml\n"
       @ONLY)
  # Only the source that ends in EBB_MODULE needs it.
  set_source_files_properties(module.cpp PROPERTIES COMPILE_OPTIONS "-include;${options_header}")
  if(NOT EBB_SANITIZE)
    target_link_options(${name} PRIVATE -Wl,-z,defs)
  endif()
  target_link_options(${name} PRIVATE -Wl,-z,nodelete
                      -Wl,--version-script=${EBB_ROOT}/cmake/module.map)
  set_target_properties(${name} PROPERTIES PREFIX "" SUFFIX ".so" OUTPUT_NAME ${name}
                        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin/modules)
endfunction()
