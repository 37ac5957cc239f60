# Read by ggml's own build (CMAKE_PROJECT_ggml_INCLUDE in .cargo/config.toml). On x86-64 ggml-base is compiled for processors without fused
# multiply-add, on AArch64 all have it: without this, weights that get_rows unpacks would round differently there.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    cmake_language(DEFER CALL target_compile_options ggml-base PRIVATE -ffp-contract=off)
endif()
