# Read by llama.cpp's own build (CMAKE_PROJECT_llama.cpp_INCLUDE in .cargo/config.toml). On Linux the files of llama.cpp's common library, which tests and
# benchmarks link, are compiled in groups, as llama.cpp does with those of its models: that takes a third of the time. CMake 3.19 has `DEFER`.
function(group_common_files)
    if(TARGET llama-common)
        set_target_properties(llama-common PROPERTIES UNITY_BUILD ON)
    endif()
endfunction()
if(CMAKE_SYSTEM_NAME STREQUAL "Linux" AND CMAKE_VERSION VERSION_GREATER_EQUAL 3.19)
    cmake_language(DEFER CALL group_common_files)
endif()
