# For a module that is built outside this tree: include it after project(), then call ebb_module().
# The compiler and its flags have to be those of the ebb that will load the module.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
include(${CMAKE_CURRENT_LIST_DIR}/EbbFlags.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/EbbAbi.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/EbbModule.cmake)
