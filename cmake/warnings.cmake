# Compiler warnings and sanitizers for our own targets.
function(strata_warnings target)
    target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wold-style-cast -Wnon-virtual-dtor
        # Fused multiply-add only where a kernel asks for it: a row's bits must not depend on how
        # the compiler contracted a loop.
        -ffp-contract=off)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        # GCC 12 sees overlapping copies in "literal" + std::string (its bug 105329).
        target_compile_options(${target} PRIVATE -Wno-restrict)
    endif()
    if(STRATA_WERROR)
        target_compile_options(${target} PRIVATE -Werror)
    endif()
    if(STRATA_SANITIZE)
        target_compile_options(${target} PRIVATE -fsanitize=${STRATA_SANITIZE} -fno-omit-frame-pointer -g)
        target_link_options(${target} PUBLIC -fsanitize=${STRATA_SANITIZE})
    endif()
endfunction()
