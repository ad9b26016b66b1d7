# Target deepinfer_xgrammar: the pinned XGrammar sources of deps/fetch.sh as one static library. Its own
# CMakeLists is not used: that overrides options it is given and forces -Werror -flto.
set(dir ${PROJECT_SOURCE_DIR}/build/_deps/xgrammar)
if(NOT EXISTS ${dir}/include/xgrammar/xgrammar.h)
    message(FATAL_ERROR "XGrammar's sources are missing; run deps/fetch.sh once (build.sh does)")
endif()
file(GLOB_RECURSE sources ${dir}/cpp/*.cc)
add_library(deepinfer_xgrammar STATIC ${sources})
target_include_directories(deepinfer_xgrammar SYSTEM PUBLIC ${dir}/include ${dir}/3rdparty/dlpack/include
                           PRIVATE ${dir}/3rdparty/picojson)
target_compile_definitions(deepinfer_xgrammar PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
target_compile_options(deepinfer_xgrammar PRIVATE -O2 -w)
# base: our patch ticks a WorkBudget in the loops that hostile grammars make long.
target_link_libraries(deepinfer_xgrammar PUBLIC Threads::Threads deepinfer_base)
set_target_properties(deepinfer_xgrammar PROPERTIES CXX_STANDARD 17 CXX_CLANG_TIDY "")
